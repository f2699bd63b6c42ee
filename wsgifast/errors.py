"""The base of every error that wsgifast raises on purpose, and those that several packages raise.

All others stand beside the code that raises them: errors of sockets in :mod:`wsgifast.sockets`,
FastWorker's in :mod:`wsgifast.workers`, and asgifast.uvicorn's in that module.
"""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import TypeVar

__all__ = [
    "BodyError",
    "BodyTooLarge",
    "ClientGone",
    "ConfigurationError",
    "MalformedRequest",
    "MissingExtra",
    "RequestError",
    "WSGIFastError",
]


_Error = TypeVar("_Error", bound=BaseException)


def without_frames(error: _Error) -> _Error:
    """Drop the traceback of a stored error, and those of the errors that led to it.

    A traceback refers to frames, these to their callers, and all of them to their objects.
    """
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = None
            left += each.__cause__, each.__context__
    return error


# Those for which Python before 3.13 has an older RFC's phrase.
_PHRASES = {
    413: "Content Too Large",
    414: "URI Too Long",
    416: "Range Not Satisfiable",
    422: "Unprocessable Content",
}
# Beside those that begin with "content-", in lower case.
_OF_CONTENT = frozenset({"accept-ranges", "etag", "last-modified", "trailer", "transfer-encoding"})


class WSGIFastError(Exception):
    """The base of all errors. The message names the wrong value and the way out."""


class BodyError(WSGIFastError, TypeError):
    """An app returned, yielded or declared an invalid response. The message names a valid one."""


class RequestError(WSGIFastError, OSError):
    """A request is refused: the response is an error, and the connection ends.

    It is an OSError for apps that read the body from the client, since it is a failing stream for
    them.

    :param status: of the response.
    :ivar headers: further headers of the response.
    """

    headers: tuple[tuple[str, str], ...] = ()

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = int(status)  # not an HTTPStatus, which servers show in their own ways

    @property
    def reason(self) -> str:
        """The status's phrase. See :func:`reason_phrase`."""
        return reason_phrase(self.status)

    def response(
        self, replaced: Iterable[tuple[str, str]] = ()
    ) -> tuple[str, list[tuple[str, str]], bytes]:
        """Return a response's status line, headers and body, which is the message.

        :param replaced: the headers of a response that this one replaces. They are sent too, except
            those of its content. Without the CORS headers a browser hides the response from pages.
        """
        body = f"{self}\n".encode()
        headers = [item for item in replaced if not _is_of_content(item[0].lower())]
        headers += self.headers
        headers.append(("Content-Type", "text/plain; charset=utf-8"))
        headers.append(("Content-Length", str(len(body))))
        return f"{self.status} {self.reason}", headers, body


class BodyTooLarge(RequestError):
    """A request's body is over a limit (RFC 9110 section 15.5.14)."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"The request body is longer than {limit_bytes} bytes",
        )


class HeadersTooLarge(RequestError):
    """A request's headers are over a limit (RFC 6585 section 5)."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(431, f"The request's headers are longer than {limit_bytes} bytes")


class MalformedRequest(RequestError, ValueError):
    """A request, or its body, breaks a rule of HTTP (RFC 9110 section 15.5.1)."""

    def __init__(self, message: str) -> None:
        super().__init__(HTTPStatus.BAD_REQUEST, message)


class BodyTooShort(WSGIFastError, EOFError):
    """A body ended before its Content-Length: raised so that the server closes the connection."""

    def __init__(self, missing: int) -> None:
        super().__init__(f"the body ended {missing} bytes before its Content-Length")
        self.missing = missing


class ClientGone(WSGIFastError, ConnectionAbortedError):
    """The client has left, or sent or took no byte for too long: nothing reaches it any more."""


class ConfigurationError(WSGIFastError, ValueError):
    """An option has an invalid value. Raised when the object is made, not at a request."""


class MissingExtra(WSGIFastError, ImportError):
    """A required package is not installed. The message names the extra that installs it."""

    def __init__(self, part: str, package: str, extra: str) -> None:
        super().__init__(
            f"{part} needs {package}, which is not installed: pip install 'wsgifast[{extra}]'"
        )


def _is_of_content(name: str) -> bool:
    """Whether a header field is about one content (RFC 9110 sections 8 and 14.4)."""
    return name.startswith("content-") or name in _OF_CONTENT


def reason_phrase(status: int) -> str:
    """Return a status's phrase (RFC 9110 section 15), whatever this Python calls it."""
    return _PHRASES.get(status) or HTTPStatus(status).phrase
