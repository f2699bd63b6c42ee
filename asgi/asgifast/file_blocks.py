"""Read files and send them as body messages, and notice when the client disconnects.

Bytes in the page cache are read on the event loop. Other bytes are read in a thread.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence

from wsgifast.sockets import FileSegment, FileTruncated
from wsgifast.sockets.sending import BLOCK_BYTES, read_cached

from .loops import in_thread, next_iteration
from .messages import Message, Receive, Send, response_body

# The most bytes of a request body that are stored while a file is sent. If the client sends more,
# its disconnect is not noticed. To notice it, all of the upload would have to be received into
# memory.
_STORED_BYTES = 64 * 1024
_STORED_MESSAGES = 64


class SharedReceive:
    """Shares a request's receive() between the app and the sender of a file.

    The sender of a file receives messages to notice a disconnect. These messages are stored for the
    app.

    :ivar is_awaited: whether the app is waiting for a message. The sender must not wait too.
    """

    __slots__ = ("_receive", "_stored", "is_awaited")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._stored: Sequence[Message] = ()
        self.is_awaited = False

    async def receive(self) -> Message:
        """Receive a message. The app gets this method as its receive()."""
        if self._stored:
            message, *self._stored = self._stored
            return message
        self.is_awaited = True
        try:
            return await self._receive()
        finally:
            self.is_awaited = False

    def has_disconnected(self) -> bool:
        return bool(self._stored) and self._stored[-1]["type"] == "http.disconnect"

    async def listen_for_disconnect(self) -> None:
        """Receive until the client disconnects, or until the limit of stored bytes."""
        while (
            not self.has_disconnected()
            and len(self._stored) < _STORED_MESSAGES
            and sum(len(message.get("body", b"")) for message in self._stored) < _STORED_BYTES
        ):
            message = await self._receive()
            self._stored = (*self._stored, message)  # the app may have received some meanwhile


async def read_block(fd: int, offset: int, size: int) -> bytes:
    """Read up to `size` bytes, which is at most BLOCK_BYTES. Return b"" at the end of the file."""
    block = read_cached(fd, offset, size)
    if block is None:
        block = await in_thread(os.pread, fd, size, offset)
    return block


async def send_segment(
    send: Send,
    segment: FileSegment,
    *,
    more_body: bool,
    is_disconnected: Callable[[], bool] | None = None,
    wait_for_room: Callable[[], Awaitable[int]] | None = None,
) -> None:
    """Send a range of an open file as body messages.

    :param more_body: the `more_body` of the last message. In the other messages it is True.
    :param is_disconnected: called before each block. If it returns True, sending ends.
    :param wait_for_room: waits until the client can receive more. Returns the most bytes of the
        next block.
    :raises FileTruncated: if the file ends early. The response is then shorter than declared.
    """
    fd, offset, size = segment
    end = offset + size
    while offset < end:
        if is_disconnected is not None and is_disconnected():
            return
        limit = BLOCK_BYTES if wait_for_room is None else min(await wait_for_room(), BLOCK_BYTES)
        block = await read_block(fd, offset, min(limit, end - offset))
        if not block:
            raise FileTruncated(end - offset, size)
        offset += len(block)
        await send(response_body(block, more_body=more_body or offset < end))
        if offset < end:
            # This task may not have been suspended since the last block. Let other requests run,
            # and the task that listens for a disconnect.
            await next_iteration()
    if size == 0 and not more_body:
        await send(response_body())
