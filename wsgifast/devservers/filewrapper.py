"""The dev servers' `wsgi.file_wrapper`."""

from __future__ import annotations

from typing import IO

from werkzeug import wsgi

from ..delivery import BLOCK_BYTES, FileSlice
from ..sockets.sendfile import FileSegment, file_segment

__all__ = ["FileWrapper"]


class FileWrapper(wsgi.FileWrapper):
    """Wraps a file that an application returns; the server sends it by sendfile where it can.

    A subclass of Werkzeug's, so that its range responses can seek in it.

    :param file: a file object; only `read` is needed.
    :param buffer_size: a suggestion for the size of the blocks (PEP 3333), followed where a read
        may have to wait for the bytes, as in a pipe. A regular file is read in larger ones.
    """

    def __init__(self, file: IO[bytes], buffer_size: int = 8192) -> None:
        if isinstance(file, FileSlice) or file_segment(file) is not None:
            buffer_size = max(buffer_size, BLOCK_BYTES)
        super().__init__(file, buffer_size)

    def segment(self) -> FileSegment | None:
        """The file from where it stands now to its end, or None if it has to be read."""
        if isinstance(self.file, FileSlice):
            return self.file.rest()
        return file_segment(self.file)
