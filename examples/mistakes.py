"""A WSGI app with common mistakes, which wsgifast corrects.

gunicorn -k gthread --threads 4 examples.mistakes:app

Serve `examples.mistakes:raw` to see how your server handles the mistakes without wsgifast.
"""

from __future__ import annotations

import wsgiref.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from wsgifast import WSGIFast

PAGE = "Grüße\n" * 1_000


def bare_text() -> str:
    """Return a str. PEP 3333 requires an iterable of bytes, and most servers respond with 500."""
    return PAGE


def bare_bytes() -> bytes:
    """Return bytes. They are iterable, but their items are numbers."""
    return PAGE.encode()


def letters() -> list[bytes]:
    """Return a chunk for each letter. Servers make a system call for each chunk."""
    return [letter.encode() for letter in PAGE]


def file_by_lines() -> Any:
    """Return an open file. Servers iterate over its lines."""
    return Path(__file__).open("rb")


def file_by_blocks() -> Any:
    """Return a file in wsgiref's wrapper. Servers read 8 KiB at a time and cannot use sendfile."""
    return wsgiref.util.FileWrapper(Path(__file__).open("rb"))


def text_file() -> Any:
    """Return a text file. It reads as str, so sendfile might send other bytes."""
    return Path(__file__).open(encoding="utf-8")


def rows() -> Iterator[str]:
    """Return a generator of str."""
    for number in range(1_000):
        yield f"{number}\n"


def wrong_length() -> str:
    """Return a str whose Content-Length counts characters instead of bytes. See `raw`."""
    return PAGE


MISTAKES: dict[str, Callable[[], Any]] = {
    "/" + mistake.__name__.replace("_", "-"): mistake
    for mistake in (
        bare_text, bare_bytes, letters, file_by_lines, file_by_blocks, text_file, rows, wrong_length
    )
}  # fmt: skip


def raw(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
    mistake = MISTAKES.get(environ["PATH_INFO"])
    if mistake is None:
        start_response("404 Not Found", [("Content-Type", "text/plain")])
        return "no such mistake: " + ", ".join(MISTAKES) + "\n"  # a str, which is also a mistake
    headers = [("Content-Type", "text/plain; charset=utf-8")]
    if mistake is wrong_length:
        headers.append(("Content-Length", str(len(PAGE))))
    start_response("200 OK", headers)
    return mistake()


app = WSGIFast(raw)
