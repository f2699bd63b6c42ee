"""HTTP/2 (RFC 9113): the streams of a connection, on the server's own threads; needs h2."""
