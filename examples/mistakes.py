"""A bare WSGI app that makes each mistake, and what wsgifast makes of it.

gunicorn -k gthread --threads 4 examples.mistakes:app

Serve `examples.mistakes:raw` to see what a server does with them otherwise.
"""

from __future__ import annotations

import wsgiref.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from wsgifast import WSGIFast

PAGE = "Grüße\n" * 1_000


def bare_text() -> str:
    """A str where PEP 3333 asks for an iterable of bytes: most servers answer 500."""
    return PAGE


def bare_bytes() -> bytes:
    """bytes are iterable, but as numbers."""
    return PAGE.encode()


def letters() -> list[bytes]:
    """A chunk for each letter: a system call for each letter."""
    return [letter.encode() for letter in PAGE]


def file_by_lines() -> Any:
    """An open file is iterated line by line."""
    return Path(__file__).open("rb")


def file_by_blocks() -> Any:
    """A foreign wrapper hides the file from the server's sendfile: 8 KiB at a time."""
    return wsgiref.util.FileWrapper(Path(__file__).open("rb"))


def text_file() -> Any:
    """A text file has a descriptor, but its bytes are not what the file reads as."""
    return Path(__file__).open(encoding="utf-8")


def rows() -> Iterator[str]:
    """A generator of text."""
    for number in range(1_000):
        yield f"{number}\n"


def wrong_length() -> str:
    """See `raw`: its Content-Length counts characters."""
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
        return "no such mistake: " + ", ".join(MISTAKES) + "\n"  # which is one, too
    headers = [("Content-Type", "text/plain; charset=utf-8")]
    if mistake is wrong_length:
        headers.append(("Content-Length", str(len(PAGE))))
    start_response("200 OK", headers)
    return mistake()


app = WSGIFast(raw)
