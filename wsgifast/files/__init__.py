"""Plan the response to a request for a file, without I/O (sans-I/O)."""

from ..http.headers import Header
from .conditions import content_etag, http_date, parse_http_date, stat_etag
from .plan import Plan, Representation, RequestFacts, describe
from .ranges import ByteRange

__all__ = [
    "ByteRange",
    "Header",
    "Plan",
    "Representation",
    "RequestFacts",
    "content_etag",
    "describe",
    "http_date",
    "parse_http_date",
    "stat_etag",
]
