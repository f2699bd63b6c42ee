"""The chunks of a body: converted to bytes, joined, or coalesced as they come. No I/O, no clock."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ..checks import app_name
from ..errors import BodyError
from ..http.headers import Headers

# A chunk of this size or more is sent as it is: the system call costs little beside its bytes, and
# a copy would cost memory.
LARGE_CHUNK_BYTES = 64 * 1024
# A body of small chunks is joined as a whole up to this size, and beyond it block by block.
JOINED_WHOLE_BYTES = 1024 * 1024
JOINED_BLOCK_BYTES = 256 * 1024


# The readers of these types wait for each event.
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

    :param charset: called only for text.
    :param app: named in errors.
    :param after_text: text came before: if the charset has a byte order mark (UTF-16), there is one
        already, and another one would be a character of the text (RFC 2781 section 3.2).
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
        # Also a subclass of bytes: wsgiref accepts bytes alone.
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
    """Return a list or tuple of chunks as few large chunks of bytes, and their total length.

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


# After a chunk that took longer than this, chunks are sent at once: the app waits for something.
SLOW_CHUNK_S = 0.001
# After this many quick chunks in a row a stream is coalesced (again).
QUICK_CHUNKS = 8
# No byte is delayed longer than this while quick chunks follow.
MAX_HOLD_S = 0.005


def coalesced(chunks: Iterator[bytes], clock: Callable[[], float]) -> Iterator[bytes]:
    """Join the chunks of a quick stream into blocks. Pass those of a slow stream on at once.

    PEP 3333 ("Buffering and Streaming") forbids middleware to delay a block while the app makes the
    next one, since that may take any time. So chunks are collected only after a run of quick ones.
    A single slow chunk sends all collected ones and ends the coalescing. No byte waits longer than
    MAX_HOLD_S while chunks follow. One delay remains: the last block before a pause may wait for
    the chunk after it. Do not use this for streams with a reader that waits for each event.

    :param clock: returns monotonic seconds.
    :raises Exception: the app's own, after everything that it had yielded.
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
            elif chunk:  # not an empty one: the app may still replace the headers
                quick += 1
            yield b"".join(delayed)
            delayed, delayed_bytes = [], 0
            last = clock()  # without the time that the server took to send the chunk
    except Exception:
        if delayed:
            yield b"".join(delayed)
        raise
    if delayed:
        yield b"".join(delayed)


def excerpt(value: object) -> str:
    """Return a value's repr for an error message, shortened."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def is_event_stream(headers: Sequence[tuple[str, str]]) -> bool:
    """Return whether Content-Type or X-Accel-Buffering asks to send each chunk at once."""
    content_type = Headers(headers).get("content-type") or ""
    buffering = Headers(headers).get("x-accel-buffering") or ""
    return content_type.lower().startswith(_EVENT_STREAMS) or buffering.lower() == "no"
