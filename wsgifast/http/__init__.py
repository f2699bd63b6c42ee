"""The rules of HTTP, each in one place: sans I/O, and without WSGI."""
