"""The write side of a connection: what it says of a file that cannot be sent."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from wsgifast.devservers.outlet import Outlet
from wsgifast.errors import BodyTooShort, ClientGone


@pytest.mark.parametrize("sendfile", [True, False])
def test_a_file_that_cannot_be_read_ends_the_body(sendfile: bool, tmp_path: Path) -> None:
    near, far = socket.socketpair()
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        with near, far:
            outlet = Outlet(near, kernel_sends_files=sendfile)
            with pytest.raises(BodyTooShort, match="30000 bytes"):
                outlet.write_file(b"head", fd, 0, 30_000)
            assert far.recv(10) == b"head"
            assert outlet.unsent == 30_000
    finally:
        os.close(fd)


@pytest.mark.parametrize("sendfile", [True, False])
def test_what_a_client_did_not_take_is_told(sendfile: bool, tmp_path: Path) -> None:
    size = 10_000_000
    path = tmp_path / "file"
    path.write_bytes(b"x" * size)
    near, far = socket.socketpair()
    with near, far, path.open("rb") as file:
        near.settimeout(0.1)
        outlet = Outlet(near, kernel_sends_files=sendfile)
        with pytest.raises(ClientGone):
            outlet.write_file(b"", file.fileno(), 0, size)
        near.close()
        taken = 0
        while block := far.recv(1 << 20):
            taken += len(block)
    assert 0 < taken == size - outlet.unsent
