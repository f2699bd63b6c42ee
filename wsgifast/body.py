"""What did the app return, and how is it repaired? Pure: no sockets, no environ, no clock.

PEP 3333 asks for an iterable of byte strings. Apps return strings, files, lists of crumbs and
worse; the functions here say what a body is and turn its parts into what a server can send.
"""

from __future__ import annotations

import inspect
import io
import tempfile
from collections.abc import Callable, Iterable, Iterator
from email.message import Message
from typing import Any

from .apps import app_name
from .errors import BodyError, ConfigurationError

__all__ = [
    "JOINED_BLOCK_BYTES",
    "JOINED_WHOLE_BYTES",
    "LARGE_CHUNK_BYTES",
    "MAX_HOLD_S",
    "QUICK_CHUNKS",
    "SLOW_CHUNK_S",
    "charset_of",
    "coalesced",
    "few_chunks",
    "is_readable",
    "known_size",
    "refuse",
    "register_file_wrapper",
    "to_bytes",
    "wrapped_file",
]

# A chunk of this size is sent as it is: beyond it a send costs more than the call around it, and
# copying it into a larger block only costs memory. Measured: loadtests/block_sizes.py.
LARGE_CHUNK_BYTES = 64 * 1024
# A body of crumbs up to this size is joined whole; of a larger one a block at a time.
JOINED_WHOLE_BYTES = 1024 * 1024
JOINED_BLOCK_BYTES = 256 * 1024

# Wrappers around a file that frameworks and servers hand out, and the attribute that holds the
# file. Named, not imported: only the ones that an app uses are ever loaded.
_FILE_WRAPPERS = {
    "bottle.WSGIFileWrapper": "fp",
    "cherrypy.lib.file_generator": "input",
    "falcon.app_helpers.CloseableStreamIterator": "_stream",
    "gunicorn.http.wsgi.FileWrapper": "filelike",
    "pyramid.response.FileIter": "file",
    "waitress.buffers.ReadOnlyFileBasedBuffer": "file",
    "webob.static.FileIter": "file",
    "werkzeug.wsgi.FileWrapper": "file",
    "wsgifast.devservers.filewrapper.FileWrapper": "file",
    "wsgiref.util.FileWrapper": "filelike",
}
# Wrappers that users have registered, by class.
_REGISTERED: dict[type, Callable[[Any], object]] = {}


def register_file_wrapper(wrapper: type, get_file: Callable[[Any], object]) -> None:
    """Teach wsgifast a class that wraps a file, so that the file is sent and not its iteration.

    :param wrapper: the class; its subclasses are not meant, since they may iterate differently.
    :param get_file: is given an instance, returns the readable file whose rest is the body. The
        file's own close() is called when the body has been sent, and not the instance's.
    :raises ConfigurationError: if the first is no class or the second cannot be called.
    """
    if not isinstance(wrapper, type):
        raise ConfigurationError(f"register_file_wrapper takes a class, not {wrapper!r}")
    if not callable(get_file):
        raise ConfigurationError(f"get_file must be callable, not {get_file!r}")
    _REGISTERED[wrapper] = get_file


def wrapped_file(body: object) -> object | None:
    """Return the file inside a known wrapper; None if the body is no known wrapper."""
    cls = type(body)
    get_file = _REGISTERED.get(cls)
    if get_file is not None:
        return get_file(body)
    attribute = _FILE_WRAPPERS.get(f"{cls.__module__}.{cls.__qualname__}")
    return None if attribute is None else getattr(body, attribute, None)


def is_readable(body: object) -> bool:
    """Whether a body is a file or anything else that is read rather than iterated."""
    return callable(getattr(body, "read", None))


def known_size(file: object) -> int | None:
    """Return how many bytes are left to read from a file in memory; None for any other."""
    if isinstance(file, tempfile.SpooledTemporaryFile):
        file = file._file
    if isinstance(file, io.BytesIO):
        return max(0, file.getbuffer().nbytes - file.tell())
    return None


def refuse(body: object, app: object) -> BodyError | None:
    """Return the error for a body that nothing can make right; None for an acceptable one."""
    if inspect.iscoroutine(body) or inspect.isasyncgen(body):
        advice = "an async app needs an ASGI server: wrap it with asgifast.ASGIFast"
    elif body is None:
        advice = "return a list of bytes, [] for an empty body"
    elif isinstance(body, dict):
        advice = "return bytes, for example json.dumps(...).encode()"
    elif isinstance(body, (set, frozenset)):
        advice = "a set has no order: return a list of bytes"
    elif not isinstance(body, Iterable) and not hasattr(body, "__getitem__"):
        advice = "return a list of bytes, or any iterable of bytes"
    else:
        return None
    return BodyError(
        f"{app_name(app)} returned {type(body).__name__} as its body: {_excerpt(body)}; {advice}"
    )


def charset_of(headers: Iterable[tuple[str, str]]) -> str:
    """Return the charset parameter of the Content-Type (RFC 9110 8.3.2), utf-8 where none is."""
    for name, value in headers:
        if name.lower() == "content-type":
            message = Message()
            message["Content-Type"] = value
            charset = message.get_param("charset")
            if isinstance(charset, str) and charset:
                return charset
    return "utf-8"


def to_bytes(chunk: object, charset: Callable[[], str], app: object) -> bytes:
    """Turn one chunk into bytes.

    :param charset: asked only if the chunk is text.
    :param app: named in errors.
    :raises BodyError: if the chunk is neither text nor bytes-like, or cannot be encoded.
    """
    if type(chunk) is bytes:
        return chunk
    if isinstance(chunk, str):
        return _encoded(chunk, charset(), app)
    try:
        # A subclass of bytes too: wsgiref accepts nothing but bytes itself.
        return bytes(memoryview(chunk))  # type: ignore[arg-type]
    except TypeError:
        raise BodyError(
            f"{app_name(app)} returned a body with {type(chunk).__name__} in it: "
            f"{_excerpt(chunk)}; yield bytes (or str, bytearray, memoryview)"
        ) from None


def _encoded(text: str, charset: str, app: object) -> bytes:
    try:
        return text.encode(charset)
    except LookupError:
        raise BodyError(
            f"{app_name(app)} returned text with the charset {charset!r} in its Content-Type, "
            "which Python does not know; return bytes, or name a known charset"
        ) from None
    except UnicodeEncodeError as error:
        raise BodyError(
            f"{app_name(app)} returned text that its Content-Type's charset {charset!r} cannot "
            f"express: {text[error.start : error.end]!r} at character {error.start}; "
            "use charset=utf-8 or return bytes"
        ) from None


def few_chunks(
    chunks: list[Any] | tuple[Any, ...], convert: Callable[[object], bytes]
) -> tuple[Iterable[bytes], int]:
    """Turn a list or tuple of chunks into few large chunks of bytes; return them and their length.

    What comes back is the same object where there is nothing to repair or to gain, one block
    where all of it is small, and else an iterator that holds one block at a time beside the app's
    own list. Large chunks are never copied.

    :param convert: turns one chunk into bytes, see :func:`to_bytes`.
    :raises BodyError: from `convert`.
    """
    try:
        total = sum(map(len, chunks))
        if _worth_joining(chunks, total) and total <= JOINED_WHOLE_BYTES:
            block = b"".join(chunks)  # takes anything bytes-like, and nothing else
            return [block], len(block)
    except TypeError:
        pass  # a chunk is text, or nothing that could be sent: see below
    if not set(map(type, chunks)) <= {bytes}:
        chunks = [convert(chunk) for chunk in chunks]
    total = sum(map(len, chunks))
    if not _worth_joining(chunks, total):
        return chunks, total
    if total <= JOINED_WHOLE_BYTES:
        return [b"".join(chunks)], total
    return _joined_blocks(chunks), total


def _worth_joining(chunks: list[Any] | tuple[Any, ...], total: int) -> bool:
    return len(chunks) > 1 and total < len(chunks) * LARGE_CHUNK_BYTES


def _joined_blocks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    held: list[bytes] = []
    held_bytes = 0
    for chunk in chunks:
        size = len(chunk)
        if size >= LARGE_CHUNK_BYTES:
            if held:
                yield b"".join(held)
                held = []
                held_bytes = 0
            yield chunk
            continue
        held.append(chunk)
        held_bytes += size
        if held_bytes >= JOINED_BLOCK_BYTES:
            yield b"".join(held)
            held = []
            held_bytes = 0
    if held_bytes:
        yield b"".join(held)


# A chunk that took longer than this to come marks a stream that its app paces: nothing is held.
SLOW_CHUNK_S = 0.001
# After so many quick chunks in a row a stream counts as quick (again), and is coalesced.
QUICK_CHUNKS = 8
# No byte is held longer than this while quick chunks go on coming.
MAX_HOLD_S = 0.005


def coalesced(chunks: Iterator[bytes], clock: Callable[[], float]) -> Iterator[bytes]:
    """Gather the chunks of a quick stream into blocks; let those of a slow one pass at once.

    A block that is held while the app makes the next one is what PEP 3333 ("Buffering and
    Streaming") forbids middleware, since an app may take its time for the next; from inside an
    iterator nobody can know. So a stream has to show that it is quick first, a single slow chunk
    lets everything go and sends the stream back to passing, and no byte waits longer than
    MAX_HOLD_S while chunks come. The one thing left is the end of a burst: up to a block may wait
    for the chunk after the pause. Streams whose reader waits for every event are not for this.

    :param clock: seconds, monotonic.
    :raises Exception: what the app raises, after everything that it yielded before.
    """
    quick = 0
    held: list[bytes] = []
    held_bytes = 0
    oldest = last = clock()
    try:
        for chunk in chunks:
            now = clock()
            if now - last > SLOW_CHUNK_S:
                quick = 0
            if quick < QUICK_CHUNKS:
                if held:
                    yield b"".join(held)
                    held = []
                    held_bytes = 0
                yield chunk
                if chunk:  # an empty one says nothing: the app may still replace the head
                    quick += 1
                last = clock()  # what the server took to send it is not the app's time
                continue
            if not held:
                oldest = now
            held.append(chunk)
            held_bytes += len(chunk)
            last = now
            if held_bytes >= LARGE_CHUNK_BYTES or now - oldest > MAX_HOLD_S:
                yield b"".join(held)
                held = []
                held_bytes = 0
                last = clock()
    except Exception:
        if held:
            yield b"".join(held)
        raise
    if held:
        yield b"".join(held)


def _excerpt(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
