"""The core of FastWorker: connections, the pool of threads, the output queues."""
