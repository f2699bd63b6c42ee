"""Every error that wsgifast raises on purpose."""

from __future__ import annotations

__all__ = ["BodyError", "ConfigurationError", "MissingExtra", "WSGIFastError"]


class WSGIFastError(Exception):
    """The base of all: the message names the value that was wrong and the way out."""


class BodyError(WSGIFastError, TypeError):
    """An app returned, yielded or declared what cannot be a response; the message says what can."""


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
