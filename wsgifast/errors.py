"""Every error that wsgifast raises on purpose."""

from __future__ import annotations

__all__ = [
    "BodyError",
    "BodyTooLarge",
    "ConfigurationError",
    "MalformedBody",
    "MissingExtra",
    "WSGIFastError",
]


class WSGIFastError(Exception):
    """The base of all: the message names the value that was wrong and the way out."""


class BodyError(WSGIFastError, TypeError):
    """An app returned, yielded or declared what cannot be a response; the message says what can."""


class BodyTooLarge(WSGIFastError):
    """A request's body is over a limit: answer 413 (RFC 9110 section 15.5.14)."""


class MalformedBody(WSGIFastError, ValueError):
    """A request's body is not what its framing says: answer 400, and close the connection."""


class ConfigurationError(WSGIFastError, ValueError):
    """An option has a value that cannot work; raised when the object is made, not at a request."""


class MissingExtra(WSGIFastError, ImportError):
    """A part needs a package that is not installed; the message says which extra brings it."""

    def __init__(self, part: str, package: str, extra: str) -> None:
        super().__init__(
            f"{part} needs {package}, which is not installed: pip install 'wsgifast[{extra}]'"
        )
        self.package = package
        self.extra = extra
