"""Addresses as they are named."""

from __future__ import annotations

import pytest

from wsgifast.sockets.address import Address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8000", ("127.0.0.1", 8000)),
        ("8000", ("127.0.0.1", 8000)),
        (":8000", ("127.0.0.1", 8000)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("[::1]:8000", ("::1", 8000)),
        ("localhost:0", ("localhost", 0)),
        ("::1:80", None),
        ("::1", None),
        ("localhost", None),
        ("127.0.0.1:", None),
        ("1:99999", None),
        ("1:00000099999", None),
        ("1:1_0", None),
        (":+1", None),
        (80, None),
    ],
)
def test_addresses(text: object, address: tuple[str, int] | None) -> None:
    assert Address.read(text) == address


def test_what_is_read_is_shown() -> None:
    for text in ("127.0.0.1:8000", "[::1]:8000"):
        assert str(Address.read(text)) == text
