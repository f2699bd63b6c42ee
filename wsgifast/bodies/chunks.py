"""Convert the chunks of a body to bytes, and join small chunks, without I/O or a clock."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ..checks import app_name
from ..errors import BodyError
from ..http.headers import Headers

# A chunk of this size or more is not joined with others. The system call that joining saves costs
# less than a copy of the chunk.
LARGE_CHUNK_BYTES = 64 * 1024
# Up to this size, a body of small chunks is joined as a whole. A larger body is joined in blocks.
JOINED_WHOLE_BYTES = 1024 * 1024
JOINED_BLOCK_BYTES = 256 * 1024


# The Content-Types of event streams. The client waits for each event.
_EVENT_STREAMS = ("text/event-stream", "multipart/x-mixed-replace", "application/x-ndjson")
# RFC 9110 5.6.6: a parameter's value is a token or a quoted string.
_PARAMETER = re.compile(r""";[ \t]*([^\s"=;]*)=(?:"((?:[^"\\]|\\.)*)"|([^\s"=;]*))""")


def charset_of(headers: Iterable[tuple[str, str]]) -> str:
    """Return the charset parameter of the Content-Type (RFC 9110 8.3.2), by default utf-8."""
    for parameter, quoted, token in _PARAMETER.findall(Headers(headers).get("content-type") or ""):
        if parameter.lower() == "charset" and (quoted or token):
            return str(quoted or token)
    return "utf-8"


def to_bytes(
    chunk: object, charset: Callable[[], str], app: object, *, after_text: bool = False
) -> bytes:
    """Convert one chunk to bytes.

    :param charset: a function that returns the charset of text.
    :param app: the app, whose name is part of error messages.
    :param after_text: whether the body already contains text. Text in UTF-16 begins with a byte
        order mark, and a second mark would be a character of the text (RFC 2781 section 3.2).
    :raises BodyError: if the chunk is neither text nor bytes-like, or cannot be encoded.
    """
    if type(chunk) is bytes:
        return chunk
    if isinstance(chunk, str):
        name = charset()
        data = _encoded(chunk, name, app)
        if after_text or not chunk:
            data = data.removeprefix(_encoded("", name, app))
        return data
    try:
        # A subclass of bytes is converted, too, because wsgiref accepts no subclasses.
        return bytes(memoryview(chunk))  # type: ignore[arg-type]
    except TypeError:
        raise BodyError(
            f"{app_name(app)} returned a body with {type(chunk).__name__} in it: "
            f"{excerpt(chunk)}; yield bytes (or str, bytearray, memoryview)"
        ) from None


def _encoded(text: str, charset: str, app: object) -> bytes:
    try:
        return text.encode(charset)
    except (LookupError, UnicodeError) as error:
        raise BodyError(
            f"{app_name(app)} returned text that its Content-Type's charset {charset!r} cannot "
            f"express: {error}; use charset=utf-8 or return bytes"
        ) from None


def few_chunks(
    chunks: list[Any] | tuple[Any, ...], convert: Callable[[object], bytes]
) -> tuple[Iterable[bytes], int]:
    """Join a list or tuple of chunks into a few large chunks. Return these and their total length.

    If nothing has to be converted or joined, the result is the same object. If all chunks together
    are small, it is one block. Otherwise it is an iterator that joins one block at a time. Large
    chunks are not copied.

    :param convert: converts one chunk to bytes. See :func:`to_bytes`.
    :raises BodyError: from `convert`.
    """
    try:
        total = sum(map(len, chunks))
        if _worth_joining(chunks, total) and total <= JOINED_WHOLE_BYTES:
            block = b"".join(chunks)  # accepts bytes-like objects only
            return [block], len(block)
    except TypeError:
        pass  # a chunk is text, or cannot be sent: see below
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
    delayed: list[bytes] = []
    delayed_bytes = 0
    for chunk in chunks:
        is_large = len(chunk) >= LARGE_CHUNK_BYTES
        if delayed and (is_large or delayed_bytes >= JOINED_BLOCK_BYTES):
            yield b"".join(delayed)
            delayed, delayed_bytes = [], 0
        if is_large:
            yield chunk
        else:
            delayed.append(chunk)
            delayed_bytes += len(chunk)
    if delayed_bytes:
        yield b"".join(delayed)


# If the app takes longer than this for a chunk, it waits for something. Chunks are then sent at
# once.
SLOW_CHUNK_S = 0.001
# After this many quick chunks in a row, further chunks are joined.
QUICK_CHUNKS = 8
# The longest delay of a byte while quick chunks follow.
MAX_HOLD_S = 0.005


def coalesced(chunks: Iterator[bytes], clock: Callable[[], float]) -> Iterator[bytes]:
    """Join the chunks of a quick stream into blocks. Yield the chunks of a slow stream at once.

    PEP 3333 ("Buffering and Streaming") forbids middleware to delay a block while the app makes the
    next block, because that may take any time. So chunks are joined only after QUICK_CHUNKS quick
    chunks. After a slow chunk, all delayed chunks are yielded, and joining stops.

    While chunks follow, no byte is delayed longer than MAX_HOLD_S. The last block before a pause
    may wait for the chunk after the pause. So do not use this function for event streams.

    :param clock: a function that returns seconds of a monotonic clock.
    :raises Exception: an error of the app, after all chunks that the app has yielded.
    """
    quick = 0
    delayed: list[bytes] = []
    delayed_bytes = 0
    oldest = last = clock()
    try:
        for chunk in chunks:
            now = clock()
            if now - last > SLOW_CHUNK_S:
                quick = 0
            if not delayed:
                oldest = now
            delayed.append(chunk)
            delayed_bytes += len(chunk)
            last = now
            if quick >= QUICK_CHUNKS:
                if delayed_bytes < LARGE_CHUNK_BYTES and now - oldest <= MAX_HOLD_S:
                    continue
            elif chunk:  # an empty chunk does not end the time in which headers may change
                quick += 1
            yield b"".join(delayed)
            delayed, delayed_bytes = [], 0
            last = clock()  # exclude the time in which the server sent the chunk
    except Exception:
        if delayed:
            yield b"".join(delayed)
        raise
    if delayed:
        yield b"".join(delayed)


def excerpt(value: object) -> str:
    """Return the repr() of a value, shortened for an error message."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def is_event_stream(headers: Sequence[tuple[str, str]]) -> bool:
    """Return whether each chunk must be sent at once, by Content-Type or X-Accel-Buffering."""
    content_type = Headers(headers).get("content-type") or ""
    buffering = Headers(headers).get("x-accel-buffering") or ""
    return content_type.lower().startswith(_EVENT_STREAMS) or buffering.lower() == "no"
