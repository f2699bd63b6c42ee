"""The kinds of bodies. Each kind is a class that knows how such a body is sent.

:func:`~.classify.classify` makes these objects. A body can be sent in two ways. Any WSGI server
iterates the object that WSGIFast returns. The servers of wsgifast call :meth:`Body.send_to`, which
sends the body in the cheapest way.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..sockets.sending import FileSegment
from .files import FileReader, FileSlice, SegmentedBody, close_body, in_file_wrapper, known_size
from .wrappers import is_whole, iterated


class Sendable:
    """An iterable of WSGIFast which the servers of wsgifast send by :meth:`send_to`."""

    __slots__ = ()

    @abstractmethod
    def send_to(self, writer: Any) -> None:
        """Send the whole body. The caller calls close()."""


class ClosedWith:
    """Blocks to send in place of the app's body, with the close() of that body.

    :param blocks: if this is a list, :func:`~.wrappers.unwrapped_body` returns it to FastWorker.
    :param body: the object that the app returned.
    """

    def __init__(self, blocks: Iterable[bytes], body: object) -> None:
        self.blocks = blocks
        self._body = body

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.blocks)

    def close(self) -> None:
        """Close the object that the app returned. A second call has no effect."""
        body, self._body = self._body, None
        close_body(body)


class Body(Sendable):
    """A body that has been classified. Each subclass is a kind of body.

    A new kind overrides :meth:`__iter__` and :meth:`send_to`, and :attr:`length` if it is known.

    :cvar sent_as: the value of environ["wsgifast.sent_as"] if the body is sent uncompressed.
    :ivar content: the body inside any known wrapper.
    :ivar owner: the object that the app returned. Its close() ends the body.
    """

    __slots__ = ("content", "owner")

    sent_as = "stream"

    def __init__(self, content: Any, owner: Any) -> None:
        self.content = content
        self.owner = owner

    @property
    def length(self) -> int | None:
        """The number of bytes. None if it is not known before the body has been read."""
        return None

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the chunks of the body."""
        return iter(self.owner)

    def for_server(self, file_wrapper: Callable[..., Any] | None = None) -> Iterable[bytes]:
        """Return the object that WSGIFast returns to the server.

        By default it is the body itself. The servers of wsgifast call :meth:`send_to`. Other
        servers iterate over the body.

        :param file_wrapper: the server's `wsgi.file_wrapper`, if it has one.
        """
        return self

    def send_to(self, writer: Any) -> None:
        """Send the body. The caller calls close().

        :param writer: a :class:`~.writer.ResponseWriter`.
        """
        writer.write_stream(self)

    def close(self) -> None:
        """Close the object that the app returned."""
        close_body(self.owner)


class Whole(Body):
    """A list or tuple, which may be in wrappers. The app has made all its chunks."""

    __slots__ = ()

    def send_to(self, writer: Any) -> None:
        # Iterate over the wrappers, because they may encode or count each chunk.
        writer.write_all(self.content if self.owner is self.content else list(self.owner))


class Bare(Body):
    """Text or bytes that an app returned without a list around the value."""

    __slots__ = ()

    def send_to(self, writer: Any) -> None:
        writer.write_unsuited(self.content, "return it as bytes in a list")


class File(Body):
    """A file whose read() returns the same bytes as its iteration, or that cannot be iterated.

    :param segment: the part of the file that sendfile can send. None if it has to be read.
    :param to_close: the object to close after the file has been sent: the owner, or the file if the
        owner has no close().
    """

    __slots__ = ("segment", "to_close")

    sent_as = "file"

    def __init__(
        self, content: Any, owner: Any, segment: FileSegment | None, to_close: Any
    ) -> None:
        self.content = content
        self.owner = owner
        self.segment = segment
        self.to_close = to_close

    @property
    def length(self) -> int | None:
        return known_size(self.content) if self.segment is None else self.segment.size

    def for_server(self, file_wrapper: Callable[..., Any] | None = None) -> Iterable[bytes]:
        if self.segment is None:
            return in_file_wrapper(
                FileReader(self.content, None, bytes, self.to_close), file_wrapper
            )
        return in_file_wrapper(FileSlice(self.segment, self.to_close), file_wrapper)

    def send_to(self, writer: Any) -> None:
        writer.write_file(self.content, self.segment, self.owner)


class Segments(Body):
    """A :class:`~.files.SegmentedBody`: byte strings and parts of files."""

    __slots__ = ()

    sent_as = "segments"
    content: SegmentedBody

    @property
    def length(self) -> int | None:
        segments = self.content.segments
        return sum(part.size if isinstance(part, FileSegment) else len(part) for part in segments)

    def for_server(self, file_wrapper: Callable[..., Any] | None = None) -> Iterable[bytes]:
        return self.content

    def send_to(self, writer: Any) -> None:
        writer.write_segments(self.content.segments)


class ServerFile(Body):
    """An object of the server's own `wsgi.file_wrapper`."""

    __slots__ = ()

    sent_as = "file"

    def for_server(self, file_wrapper: Callable[..., Any] | None = None) -> Iterable[bytes]:
        owner: Iterable[bytes] = self.owner
        return owner


class Stream(Body):
    """An iterable of another kind. The app makes its chunks while the server iterates over it."""

    __slots__ = ()

    def send_to(self, writer: Any) -> None:
        content = self.content
        if isinstance(content, Sendable):
            content.send_to(writer)
        elif is_whole(content):  # a list's iterator
            writer.write_all(list(self.owner))
        else:
            writer.write_stream(iterated(self.owner))


class Refusal(Body):
    """An object that is not a body.

    :param advice: the object to return instead, for the app's author.
    """

    __slots__ = ("advice",)

    def __init__(self, content: Any, owner: Any, advice: str) -> None:
        super().__init__(content, owner)
        self.advice = advice

    def send_to(self, writer: Any) -> None:
        writer.write_unsuited(self.owner, self.advice)
