"""Shared parts of the protocols for uvicorn: output, sendfile, responses, request bodies."""
