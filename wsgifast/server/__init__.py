"""The core of FastWorker: connections, thread pool and output queues. It does not use gunicorn."""
