"""Grammar that several header fields share."""

from __future__ import annotations

# token of RFC 9110 5.6.2, as a regular expression: methods, field names, codings, ...
TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
