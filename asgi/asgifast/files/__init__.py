"""How files go out as ASGI messages, on any server: reads, extensions, ranges."""
