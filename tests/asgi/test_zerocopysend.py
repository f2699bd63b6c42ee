"""Descriptors through ASGIFast: which messages reach which server."""

from __future__ import annotations

import gzip
import io
import os
from pathlib import Path
from typing import Any

import pytest
from asgifast.messages import PATHSEND, PLANNED, ZEROCOPYSEND, Message

from wsgifast import BodyError
from wsgifast.sockets.sending import FileTruncated

from .support import DATA, END, START, app_of, call, offering, scope_of

pytestmark = pytest.mark.usefixtures("no_descriptor_is_left")


def zerocopy(file: Any, **options: Any) -> Message:
    return {"type": ZEROCOPYSEND, "file": file, **options}


def test_server_that_takes_descriptors_gets_offset_and_count(path: str) -> None:
    """A server may take no number for a descriptor, and move no position."""
    for opened in (open(path, "rb"), os.open(path, os.O_RDONLY)):
        app = app_of(START, zerocopy(opened, count=3, more_body=True), zerocopy(opened, count=4))
        _, first, second = call(app, offering(ZEROCOPYSEND)).messages
        assert (first["offset"], first["count"], first["more_body"]) == (0, 3, True)
        assert (second["offset"], second["count"], second["more_body"]) == (3, 4, False)
        if isinstance(opened, int):
            assert first["file"].fileno() == opened
            assert os.lseek(opened, 0, os.SEEK_CUR) == 7
            os.close(opened)
        else:
            with opened:
                assert first["file"].fileno() == opened.fileno()
                assert opened.tell() == 7


def test_server_of_ours_gets_the_message_unchanged(path: str) -> None:
    with open(path, "rb") as file:
        message = zerocopy(file, count=3)
        answer = call(app_of(START, message), offering(PLANNED, PATHSEND, ZEROCOPYSEND))
        assert answer.messages[1] is message
        assert file.tell() == 0, "the server moves it"


def test_head_has_no_bytes_of_a_descriptor(path: str) -> None:
    with open(path, "rb") as file:
        app = app_of(START, zerocopy(file, count=3, more_body=True), zerocopy(file, count=4))
        answer = call(app, offering(ZEROCOPYSEND, method="HEAD"))
        assert (answer.types, answer.body) == (["http.response.start", "http.response.body"], b"")


def test_descriptor_moves_on_where_no_offset_is_given(path: str) -> None:
    with open(path, "rb") as file:
        file.seek(2)
        messages = (
            zerocopy(file, count=3, more_body=True),
            zerocopy(file, count=0, more_body=True),
            zerocopy(file, count=4, offset=100, more_body=True),
            zerocopy(file, more_body=True),
        )
        answer = call(app_of(START, *messages, END), scope_of())
        assert answer.body == DATA[2:5] + DATA[100:104] + DATA[5:] + b"."
        assert file.tell() == len(DATA)
    fd = os.open(path, os.O_RDONLY)
    try:
        os.lseek(fd, 7, os.SEEK_SET)
        answer = call(app_of(START, zerocopy(fd, count=3, more_body=True), END), scope_of())
        assert answer.body == DATA[7:10] + b"."
        assert os.lseek(fd, 0, os.SEEK_CUR) == 10
        call(app_of(START, zerocopy(fd, count=3, offset=50)), scope_of())
        assert os.lseek(fd, 0, os.SEEK_CUR) == 10
    finally:
        os.close(fd)


def test_offset_behind_the_end_of_a_descriptor_sends_nothing(path: str) -> None:
    with open(path, "rb") as file:
        assert call(app_of(START, zerocopy(file, offset=5000)), scope_of()).body == b""


def test_count_beyond_the_end_of_a_descriptor_raises(path: str) -> None:
    sent: list[Message] = []
    with open(path, "rb") as file:
        app = app_of(START, zerocopy(file, offset=0, count=len(DATA) + 1))
        with pytest.raises(FileTruncated, match="1 of 1025 bytes"):
            call(app, scope_of(), on_send=sent.append)
    assert sent[-1]["more_body"], "the body must not look complete"


@pytest.mark.parametrize("option", ["offset", "count"])
@pytest.mark.parametrize("value", [-1, "1", 1.5])
def test_invalid_offset_or_count_of_a_descriptor_is_refused(
    path: str, option: str, value: object
) -> None:
    with open(path, "rb") as file, pytest.raises(BodyError, match=f"{option} is a number of bytes"):
        call(app_of(START, zerocopy(file, **{option: value})), scope_of())


@pytest.mark.parametrize("file", [io.BytesIO(DATA), object(), None])
def test_file_without_a_descriptor_is_refused(file: object) -> None:
    with pytest.raises(BodyError, match="needs a file with a descriptor"):
        call(app_of(START, zerocopy(file)), scope_of())


def test_file_object_of_other_bytes_than_its_descriptor_is_refused(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "f.gz", "wb") as packed:
        packed.write(DATA)
    with (
        gzip.open(tmp_path / "f.gz", "rb") as file,
        pytest.raises(BodyError, match="other bytes than the file object"),
    ):
        call(app_of(START, zerocopy(file)), scope_of())


@pytest.mark.parametrize(("options", "sent"), [({}, b"piped data"), ({"count": 5}, b"piped")])
@pytest.mark.parametrize("more", [True, False])
def test_pipe_is_read_for_other_servers(options: dict[str, int], sent: bytes, more: bool) -> None:
    reader, writer = os.pipe()
    try:
        os.write(writer, b"piped data")
        os.close(writer)
        messages = [START, zerocopy(reader, more_body=more, **options), *([END] if more else [])]
        assert call(app_of(*messages), scope_of()).body == sent + (b"." if more else b"")
    finally:
        os.close(reader)
