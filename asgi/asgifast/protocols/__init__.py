"""Parts that asgifast's uvicorn protocols share: output, files, responses and request bodies."""
