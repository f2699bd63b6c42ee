"""HTTP/2 (RFC 9113) on the server's own threads; needs h2."""
