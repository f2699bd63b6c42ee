"""The sans-I/O core of file responses: a request's facts and a file's facts in, a plan out."""

from .conditions import content_etag, http_date, parse_http_date, stat_etag
from .entry import Entry, FilePart, Header, Plan, Representation, describe
from .plan import RequestFacts, plan_entry, plan_representation

__all__ = [
    "Entry",
    "FilePart",
    "Header",
    "Plan",
    "Representation",
    "RequestFacts",
    "content_etag",
    "describe",
    "http_date",
    "parse_http_date",
    "plan_entry",
    "plan_representation",
    "stat_etag",
]
