"""The base class of all errors that wsgifast raises on purpose, and errors of many modules.

Other errors are defined where they are raised: errors of sockets in :mod:`wsgifast.sockets`, errors
of FastWorker in :mod:`wsgifast.workers`, and errors of asgifast.uvicorn in that module.
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
    """Drop the tracebacks of a stored error and of its causes.

    A traceback refers to frames, and these refer to their callers and to all local objects.
    """
    if error.__traceback__ is None and error.__cause__ is None and error.__context__ is None:
        return error
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = None
            left += each.__cause__, each.__context__
    return error


# Statuses for which Python before 3.13 has the phrase of an older RFC.
_PHRASES = {
    413: "Content Too Large",
    414: "URI Too Long",
    416: "Range Not Satisfiable",
    422: "Unprocessable Content",
}
# Header fields about content, in lower case, in addition to those that begin with "content-".
_OF_CONTENT = frozenset({"accept-ranges", "etag", "last-modified", "trailer", "transfer-encoding"})


class WSGIFastError(Exception):
    """The base class of all errors. The message contains the wrong value and the correction."""


class BodyError(WSGIFastError, TypeError):
    """An app's response is invalid. The message describes a valid one."""


class RequestError(WSGIFastError, OSError):
    """A request is refused: the client gets an error response, and the connection is closed.

    It is an OSError, because apps that read the body expect this class for a failing stream.

    :param status: the status of the response.
    :ivar headers: additional headers of the response.
    """

    headers: tuple[tuple[str, str], ...] = ()

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = int(status)  # callers may pass an HTTPStatus

    @property
    def reason(self) -> str:
        """The reason phrase of the status. See :func:`reason_phrase`."""
        return reason_phrase(self.status)

    def response(
        self, replaced: Iterable[tuple[str, str]] = ()
    ) -> tuple[str, list[tuple[str, str]], bytes]:
        """Return the response: the status line, the headers, and the message as the body.

        :param replaced: the headers of a response that this one replaces. They are included, except
            headers about content. Browsers need some of them: without the CORS headers, a browser
            would hide the response from pages.
        """
        body = f"{self}\n".encode()
        headers = [item for item in replaced if not _is_of_content(item[0].lower())]
        headers += self.headers
        headers.append(("Content-Type", "text/plain; charset=utf-8"))
        headers.append(("Content-Length", str(len(body))))
        return f"{self.status} {self.reason}", headers, body


class BodyTooLarge(RequestError):
    """A request's body is longer than a limit (RFC 9110 section 15.5.14)."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"The request body is longer than {limit_bytes} bytes",
        )


class HeadersTooLarge(RequestError):
    """A request's headers are longer than a limit (RFC 6585 section 5)."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(431, f"The request's headers are longer than {limit_bytes} bytes")


class MalformedRequest(RequestError, ValueError):
    """A request, or its body, breaks a rule of HTTP (RFC 9110 section 15.5.1)."""

    def __init__(self, message: str) -> None:
        super().__init__(HTTPStatus.BAD_REQUEST, message)


class BodyTooShort(WSGIFastError, EOFError):
    """A body has fewer bytes than its Content-Length. The server closes the connection."""

    def __init__(self, missing: int) -> None:
        super().__init__(f"the body ended {missing} bytes before its Content-Length")
        self.missing = missing


class ClientGone(WSGIFastError, ConnectionAbortedError):
    """The client has left, or is disconnected because it sent or received no byte for too long."""


class ConfigurationError(WSGIFastError, ValueError):
    """An option has an invalid value. It is raised when an object is made, not in a request."""


class MissingExtra(WSGIFastError, ImportError):
    """A required package is not installed. The message names the extra that installs it."""

    def __init__(self, part: str, package: str, extra: str) -> None:
        super().__init__(
            f"{part} needs {package}, which is not installed: pip install 'wsgifast[{extra}]'"
        )


def _is_of_content(name: str) -> bool:
    """Return whether a header field describes the content (RFC 9110 sections 8 and 14.4)."""
    return name.startswith("content-") or name in _OF_CONTENT


def reason_phrase(status: int) -> str:
    """Return the reason phrase of a status (RFC 9110 section 15), in any version of Python."""
    return _PHRASES.get(status) or HTTPStatus(status).phrase
