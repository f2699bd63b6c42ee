"""gunicorn's error pages as FastWorker sends them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from gunicorn import util

from wsgifast.workers.gunicorn_support import ErrorPage


def recorded() -> tuple[Callable[[int, bytes], int], list[tuple[int, bytes]]]:
    sent: list[tuple[int, bytes]] = []

    def send(status: int, page: bytes) -> int:
        sent.append((status, page))
        return 5

    return send, sent


HEAD = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 6\r\n\r\n"


@pytest.mark.parametrize("page", [b"a\n\nb\r\n", b"\n\r\n\n\r\n"])
@pytest.mark.parametrize(
    "head", [HEAD, HEAD[:-2] + b"\n", HEAD.replace(b"\r", b"")], ids=["right", "last", "all"]
)
def test_error_page_head_is_repaired_and_body_unchanged(head: bytes, page: bytes) -> None:
    send, sent = recorded()
    page_socket = ErrorPage(send)
    page_socket.sendall(head + page)
    assert sent == [(400, HEAD + page)]
    assert page_socket.size == 5


def test_error_page_of_gunicorn_is_valid() -> None:
    send, sent = recorded()
    page_socket = ErrorPage(send)
    util.write_error(page_socket, 400, "Bad Request", "what <came>\n\n")
    ((status, answer),) = sent
    assert status == 400
    head, _, page = answer.partition(b"\r\n\r\n")
    assert b"\n" not in head.replace(b"\r\n", b"")
    assert f"Content-Length: {len(page)}".encode() in head.splitlines()
    assert b"what &lt;came&gt;" in page
