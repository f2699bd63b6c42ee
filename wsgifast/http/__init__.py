"""The rules of HTTP as pure code: without I/O, and independent of WSGI."""
