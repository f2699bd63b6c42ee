"""The core of FastWorker: connections, the thread pool, output queues. It knows no gunicorn."""
