"""The sans-I/O core of file responses: a request and a file's metadata in, a plan out."""

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
