"""What the protocols for uvicorn share: transport, sendfile, responses, request bodies."""
