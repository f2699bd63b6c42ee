"""What many fields are made of."""

from __future__ import annotations

__all__ = ["TOKEN"]

# RFC 9110 5.6.2, as a regular expression: a method, a field's name, a coding, ...
TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
