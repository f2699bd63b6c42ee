"""Parts that asgifast's uvicorn protocols share: output, sendfile, responses, request bodies."""
