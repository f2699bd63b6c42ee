"""The chunks of a body: turned into bytes, joined, or coalesced as they come. No I/O, no clock."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..apps import app_name
from ..errors import BodyError

__all__ = [
    "JOINED_BLOCK_BYTES",
    "JOINED_WHOLE_BYTES",
    "LARGE_CHUNK_BYTES",
    "MAX_HOLD_S",
    "QUICK_CHUNKS",
    "SLOW_CHUNK_S",
    "charset_of",
    "coalesced",
    "excerpt",
    "few_chunks",
    "to_bytes",
]

# A chunk of this size is sent as it is: beyond it a send costs more than the call around it, and
# copying it into a larger block only costs memory.
LARGE_CHUNK_BYTES = 64 * 1024
# A body of small chunks up to this size is joined whole; of a larger one a block at a time.
JOINED_WHOLE_BYTES = 1024 * 1024
JOINED_BLOCK_BYTES = 256 * 1024


# RFC 9110 5.6.6: a parameter's value is a token or a quoted string.
_PARAMETER = re.compile(r""";[ \t]*([^\s"=;]*)=(?:"((?:[^"\\]|\\.)*)"|([^\s"=;]*))""")


def charset_of(headers: Iterable[tuple[str, str]]) -> str:
    """Return the charset parameter of the Content-Type (RFC 9110 8.3.2), utf-8 where none is."""
    for name, value in headers:
        if name.lower() == "content-type":
            for parameter, quoted, token in _PARAMETER.findall(value):
                if parameter.lower() == "charset" and (quoted or token):
                    return str(quoted or token)
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
            f"{excerpt(chunk)}; yield bytes (or str, bytearray, memoryview)"
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


def excerpt(value: object) -> str:
    """A value as an error message shows it."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
