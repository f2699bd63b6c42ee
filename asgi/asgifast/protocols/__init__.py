"""What the protocols for uvicorn and for gunicorn share: transport, sendfile, responses."""
