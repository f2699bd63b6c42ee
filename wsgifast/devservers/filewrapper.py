"""The development servers' `wsgi.file_wrapper`."""

from __future__ import annotations

import io
from typing import IO
from wsgiref import util

from ..bodies.files import segment_of
from ..sockets.sendfile import BLOCK_BYTES


class FileWrapper(util.FileWrapper):
    """Wraps a file that an application returns; the server sends it by sendfile if possible.

    :param file: a file object; only `read` is needed.
    :param buffer_size: a suggestion for the size of the blocks (PEP 3333), followed if a read may
        have to wait, as for a pipe. Regular files and BytesIO are read in larger blocks.
    """

    def __init__(self, file: IO[bytes], buffer_size: int = 8192) -> None:
        if isinstance(file, io.BytesIO) or segment_of(file) is not None:
            buffer_size = max(buffer_size, BLOCK_BYTES)
        super().__init__(file, buffer_size)
