"""The core of FastWorker: connections, thread pool and output queues. It is free of gunicorn."""
