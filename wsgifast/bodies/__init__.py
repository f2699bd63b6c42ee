"""What WSGI apps return, and the shapes in which a server sends it fastest."""
