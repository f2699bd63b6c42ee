"""Request bodies that are received before the app is called.

A slow client then occupies no task, database session or lock of the app. A body waits in memory, up
to a limit for the whole process, and beyond it in an unnamed temporary file. If that cannot be
written, the app is called with what has come, and receives the rest by itself: no request fails
for lack of room.
"""

from __future__ import annotations

from typing import cast

from wsgifast.checks import is_count, shown
from wsgifast.errors import ConfigurationError
from wsgifast.files.temporary import Budget, TemporaryFile
from wsgifast.sockets.sending import BLOCK_BYTES

from .files import read_block
from .loops import in_thread
from .messages import Message, Receive

# Bodies up to this size are buffered, with ``buffer_bodies=True``: forms and photos. Larger ones
# are mostly read as streams.
_DEFAULT_BYTES = 16 * 1024 * 1024
# Of one body in memory; and of all of a process, in memory and in files.
_IN_MEMORY_BYTES = 512 * 1024
IN_MEMORY = Budget(64 * 1024 * 1024)
ON_DISK = Budget(4 * 1024 * 1024 * 1024)
# Of the file system of temporary files.
_LEFT_FREE_BYTES = 64 * 1024 * 1024


def buffer_bytes(buffer_bodies: object) -> int:
    """Return what an option `buffer_bodies` asks for: the largest body; 0 for none.

    :raises ConfigurationError: if it is neither True nor False nor a number of bytes.
    """
    if isinstance(buffer_bodies, bool):
        return _DEFAULT_BYTES if buffer_bodies else 0
    if not is_count(buffer_bodies, least=1):
        raise ConfigurationError(
            f"buffer_bodies={shown(buffer_bodies)}: True, False, or the most bytes of a body"
        )
    return cast(int, buffer_bodies)


class BufferedBody:
    """The body of one request: received by :meth:`fill`, and then again by the app.

    The file has the body's beginning, and the memory what came after it.

    :param receive: the server's.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._last: Message | None = None  # the server's message, if it has all of the body
        self._file: TemporaryFile | None = None
        self._written = self._read = 0  # bytes of the file
        self._memory = bytearray()
        self._rest = b""  # what there was no room for
        self._is_complete = False

    async def fill(self) -> bool:
        """Receive the body, or as much of it as there is room for.

        :returns: False if the client has disconnected.
        """
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                return False
            data = message.get("body", b"")
            self._is_complete = not message.get("more_body", False)
            if self._is_complete and not self._memory and self._file is None:
                self._last = message
                return True
            if not await self._keep(data):
                self._rest = data
                return True
            if self._is_complete:
                return True

    async def receive(self) -> Message:
        """The receive() that the app is given."""
        message, self._last = self._last, None
        if message is not None:
            return message
        at = self._read
        if self._file is not None and at < self._written:
            size = min(BLOCK_BYTES, self._written - at)
            self._read += size  # at once: two tasks may receive
            block = await read_block(self._file.fileno(), at, size)
            if len(block) < size:
                raise OSError(f"a buffered request body ends after {at + len(block)} bytes")
            return self._message(block)
        if self._memory or self._rest:
            block = bytes(self._memory) + self._rest if self._rest else bytes(self._memory)
            self._rest = b""
            self._drop_memory()
            return self._message(block)
        return await self._receive()

    async def close(self) -> None:
        """Drop what the app has not received."""
        self._drop_memory()
        file, self._file = self._file, None
        if file is not None:
            try:
                await in_thread(file.close)  # to free a large file takes milliseconds
            finally:
                if not file.closed:  # trio starts no thread for a task that is cancelled
                    file.close()

    def _message(self, block: bytes) -> Message:
        is_last = self._read == self._written and not self._memory and not self._rest
        more_body = not (self._is_complete and is_last)
        return {"type": "http.request", "body": block, "more_body": more_body}

    async def _keep(self, data: bytes) -> bool:
        """Append what was received; False, and nothing appended, if there is no room."""
        size = len(data)
        if len(self._memory) + size <= _IN_MEMORY_BYTES and IN_MEMORY.take(size):
            self._memory += data
            return True
        try:
            await in_thread(self._write, data)
        except OSError:
            return False
        self._drop_memory()
        return True

    def _write(self, data: bytes) -> None:
        """Write what is in memory, and then this."""
        if self._file is None:
            self._file = TemporaryFile(ON_DISK, left_free_bytes=_LEFT_FREE_BYTES)
        self._written += self._file.append(self._memory + data).size

    def _drop_memory(self) -> None:
        IN_MEMORY.count(-len(self._memory))
        self._memory = bytearray()
