"""Request headers: their end is found in any split, with bounded work. Host is parsed."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsgifast.errors import MalformedRequest
from wsgifast.http.request_headers import HeaderScanner, check_host

HEAD = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


def looks(pieces: list[bytes]) -> list[int]:
    """Return how many bytes had arrived at each call of the parser."""
    scanner = HeaderScanner(pieces[0])
    seen = []
    for piece in pieces[1:]:
        if scanner.add(piece):
            seen.append(len(scanner.data))
    assert bytes(scanner.data) == b"".join(pieces)
    return seen


def test_end_of_headers_is_found_in_every_split() -> None:
    data = HEAD + b"body"
    for cut in range(len(HEAD)):
        assert looks([data[:cut], data[cut:]]) == [len(data)]
        assert looks([b"", data[:cut], data[cut:]])[-1] == len(data)
    for first, second in itertools.combinations(range(len(HEAD)), 2):
        assert looks([data[:first], data[first:second], data[second:]]) == [len(data)]
    assert looks([data[i : i + 1] for i in range(len(HEAD))]) == [len(HEAD)]


def test_incomplete_headers_are_not_looked_at() -> None:
    for end in range(len(HEAD)):
        assert looks([HEAD[i : i + 1] for i in range(end)] or [b""]) == []


@pytest.mark.parametrize("bad", [b"\n", b"G\nX", b"GET / HTTP/1.1\n", b"A\r\nB\n", b"A\r\n\n"])
def test_bare_lf_is_looked_at_as_soon_as_it_comes(bad: bytes) -> None:
    end = bad.rindex(b"\n") + 1
    pieces = [bad[i : i + 1] for i in range(len(bad))]
    assert looks([b"", *pieces]) == [end]
    for cut in range(end):
        assert looks([bad[:cut], bad[cut:]]) == [len(bad)]


def test_headers_without_end_are_parsed_when_doubled() -> None:
    seen = looks([b"X: 1\r\n"] * 200_000)
    assert seen[0] <= 4100
    assert all(later >= 2 * earlier for earlier, later in itertools.pairwise(seen))
    assert all(later <= 2 * earlier + 6 for earlier, later in itertools.pairwise(seen))
    assert len(seen) < 12


def test_bytes_are_looked_at_once() -> None:
    """A parser that wants more data after an empty line, as in a proxy's binary header."""
    scanner = HeaderScanner()
    assert scanner.add(b"\r\n\r\n\x00\r\nQUIT\n")
    assert not any(scanner.add(b"x") for _ in range(1000))
    assert not any(scanner.add(byte) for byte in [b"\r", b"\n", b"\r"])
    assert scanner.add(b"\n")


class Counting(bytearray):
    """The received bytes, with a count of the bytes that are searched."""

    searched = 0

    def find(self, what: bytes, start: int = 0) -> int:  # type: ignore[override]
        Counting.searched += len(self) - start
        return super().find(what, start)

    def count(self, what: bytes, start: int = 0) -> int:  # type: ignore[override]
        Counting.searched += len(self) - start
        return super().count(what, start)


def test_searched_bytes_are_not_searched_again() -> None:
    scanner = HeaderScanner()
    scanner.data = Counting()
    Counting.searched = 0
    for _ in range(10_000):
        scanner.add(b"x")
    assert Counting.searched <= 10_000 * (4 + 1 + 2)


@given(st.lists(st.sampled_from([b"\r", b"\n", b"\r\n", b"\r\n\r\n", b"a", b"ab: c"]), max_size=30))
def test_end_of_any_headers_is_never_missed(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    shown = looks([b"", *pieces])
    bare = data.count(b"\n") != data.count(b"\r\n")
    assert bool(shown) == (bare or b"\r\n\r\n" in data)


@pytest.mark.parametrize(
    "value",
    [
        "a", "a.test", "a.test:80", "a.test:", "", ":80", "127.0.0.1", "[::1]", "[::1]:8000",
        "[v1.a:b]", "under_score", "a-b~c", "%C3%A4.test", "a!$&'()*+,;=b",
    ],
)  # fmt: skip
def test_host_with_and_without_a_port_passes(value: str) -> None:
    check_host([value], http11=True)
    check_host([value], http11=False)


@pytest.mark.parametrize(
    "value",
    [
        "a b", "a/b", "a?b", "a#b", "a@b", "user@a", "a:80:80", "a:b", "::1", "[::1", "::1]", "[]",
        "[::1]a", "a\\b", "a\tb", "\xe4.test", "%", "%4", "%zz", "a,b c", '"a"', "<a>", "a\n",
        "a:\u0661",
    ],
)  # fmt: skip
def test_host_that_is_malformed_is_refused(value: str) -> None:
    for http11 in (True, False):
        with pytest.raises(MalformedRequest):
            check_host([value], http11=http11)


def test_number_of_hosts_is_checked() -> None:
    check_host([], http11=False)
    with pytest.raises(MalformedRequest, match="0 Host headers"):
        check_host([], http11=True)
    for http11 in (True, False):
        with pytest.raises(MalformedRequest, match="2 Host headers"):
            check_host(["a", "a"], http11=http11)
