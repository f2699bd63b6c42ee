"""The bodies that WSGI apps return, and how they are sent."""
