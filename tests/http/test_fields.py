"""Response headers: invalid ones, cached ones, and their bytes on the wire."""

from __future__ import annotations

from enum import Enum
from typing import Any

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsgifast.errors import BodyError
from wsgifast.http import fields as module
from wsgifast.http.fields import (
    ResponseStart,
    check_field,
    known_start,
    parse_length,
    read_headers,
    status_code,
)
from wsgifast.http.framing import Framing, frame_response

OK = "200 OK"


@pytest.mark.parametrize(
    "status",
    [
        *("", "200OK", "20 OK", "2000 OK", "200 OK\r\nX: 1", "200 O\0K", " 200 OK", "000 None"),
        *("\u0662\u0660\u0660 OK", "200 \u20ac", "200\tOK", b"200 OK", 200, None, ["200 OK"]),
    ],
)
def test_malformed_status_is_refused(status: Any) -> None:
    with pytest.raises(BodyError, match="give a str such as '200 OK'"):
        ResponseStart(status, [])


@pytest.mark.parametrize("status", ["100 Continue", "102 Processing", "103 Early Hints", "199 Odd"])
def test_interim_status_is_refused(status: str) -> None:
    with pytest.raises(BodyError, match="another response must follow"):
        ResponseStart(status, [])


@pytest.mark.parametrize(
    ("status", "code"),
    [("200 OK", 200), ("200", 200), ("404 ", 404), ("500 \xe9t\xe9\t!", 500), ("999 Odd", 999)],
)
def test_status_gives_its_code_each_time(status: str, code: int) -> None:
    assert [status_code(status), status_code(status)] == [code, code]
    assert ResponseStart(status, []).code == code


def test_status_101_without_an_upgrade_is_refused() -> None:
    with pytest.raises(BodyError, match="Connection: upgrade"):
        ResponseStart("101 Switching Protocols", [("Upgrade", "websocket")])
    headers = [("Upgrade", "websocket"), ("X-A", "1"), ("Connection", "keep-alive, Upgrade")]
    start = ResponseStart("101 Switching Protocols", headers)
    assert start.upgrades
    assert start.headers == [("X-A", "1"), ("Upgrade", "websocket")]


BAD_NAMES = ["", "X Y", "X:", "X\r\nY", "X\0", "\xe9", "X\u2028", b"X", 1, None, ["X"]]
BAD_VALUES = ["a\r\nSet-Cookie: b", "a\nb", "a\rb", "a\0b", "\x7f", "\u20ac", "\ud800"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_malformed_header_name_is_refused(name: Any) -> None:
    with pytest.raises(BodyError):
        ResponseStart(OK, [(name, "secret")])
    with pytest.raises(BodyError):
        check_field(name, "secret")


@pytest.mark.parametrize("value", [*BAD_VALUES, b"a", 1, None, ["a"]])
@pytest.mark.parametrize("name", ["X-Never-Seen", "Content-Type", "Connection", "Content-Length"])
def test_malformed_header_value_is_not_repeated(name: str, value: Any) -> None:
    for kind in ("text/plain", "1"):  # from now on the usual names are cached
        ResponseStart(OK, [("Content-Type", kind), ("Content-Length", "1")])
    with pytest.raises(BodyError) as caught:
        ResponseStart(OK, [(name, value)])
    assert name in str(caught.value)
    assert "Set-Cookie" not in str(caught.value)


@pytest.mark.parametrize(
    "headers", [None, 5, "ab", ["X"], [("X",)], [("X", "1", "2")], [None], {"X-Name": "1"}]
)
def test_headers_that_are_no_pairs_are_refused(headers: Any) -> None:
    with pytest.raises(BodyError, match="list of"):
        ResponseStart(OK, headers)
    with pytest.raises(BodyError, match="list of"):
        read_headers(headers)[0]


def test_headers_stay_in_their_order_and_are_stripped() -> None:
    given_headers = [("X-B", " \t1 2\t"), ("x-a", ""), ("X-B", "3"), ("Set-Cookie", "a=\xe9")]
    start = ResponseStart(OK, given_headers)
    assert start.headers == [("X-B", "1 2"), ("x-a", ""), ("X-B", "3"), ("Set-Cookie", "a=\xe9")]
    assert given_headers[0] == ("X-B", " \t1 2\t")


@pytest.mark.parametrize(
    "name",
    [
        *("Connection", "keep-alive", "Proxy-Authenticate", "TE", "Trailer", "Transfer-Encoding"),
        *("Upgrade", "proxy-connection"),
    ],
)
def test_hop_by_hop_header_is_dropped_each_time(name: str) -> None:
    for _ in range(2):
        assert ResponseStart(OK, [(name, "chunked"), ("X", "1")]).headers == [("X", "1")]


@pytest.mark.parametrize(
    ("value", "closes"),
    [
        ("close", True),
        ("Close", True),
        ("x, close", True),
        ("keep-alive", False),
        ("closed", False),
    ],
)
def test_connection_close_of_the_app_is_noted(value: str, closes: bool) -> None:
    assert ResponseStart(OK, [("Connection", value)]).closes is closes


@pytest.mark.parametrize("date", ["Date", "date"])
def test_date_and_server_of_the_app_are_noted(date: str) -> None:
    headers = [(date, "then"), ("SERVER", "mine"), ("X", "1")]
    for _ in range(2):
        start = ResponseStart(OK, headers)
        assert start.headers == headers
        assert start.has_date
        assert start.has_server
        other = ResponseStart(OK, headers[2:])
        assert not other.has_date
        assert not other.has_server


@pytest.mark.parametrize(
    "value",
    ["", "-1", "+5", "1_0", "5, 5", "0x5", "1.0", "\u0665", "5 5", "1" * 19, b"5", 5, None],
)
def test_content_length_that_is_no_number_is_refused(value: Any) -> None:
    headers: list[Any] = [("content-LENGTH", value)]
    with pytest.raises(BodyError):
        ResponseStart(OK, headers)
    with pytest.raises(BodyError, match="Content-Length is set to"):
        read_headers(headers)[0]
    if isinstance(value, str):
        assert parse_length(value) is None


def test_content_lengths_that_differ_are_refused() -> None:
    agree = [("Content-Length", "5"), ("content-length", "05")]
    differ = [("Content-Length", "5"), ("content-length", "6")]
    assert read_headers(agree)[0] == ResponseStart(OK, agree).content_length == 5
    assert ResponseStart(OK, agree).headers == []
    with pytest.raises(BodyError, match="set to 5 and to '6'"):
        read_headers(differ)[0]
    with pytest.raises(BodyError, match="set to 5 and to '6'"):
        ResponseStart(OK, differ)


@given(st.integers(min_value=0, max_value=10**18 - 1))
def test_content_length_is_parsed(size: int) -> None:
    headers = [("Content-Length", str(size))]
    assert read_headers(headers)[0] == ResponseStart(OK, headers).content_length == size


def test_missing_content_length_is_none() -> None:
    headers = [("Content-Type", "5"), ("Content-Lengths", "5"), ("X-ontent-Lengt", "5")]
    assert read_headers(headers)[0] is None
    assert ResponseStart(OK, headers).content_length is None


names = st.from_regex(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,20}", fullmatch=True)
values = st.text(
    st.characters(min_codepoint=0x20, max_codepoint=0xFF, blacklist_categories=["Cc"]), max_size=20
)


@given(
    reason=st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E)),
    headers=st.lists(st.tuples(names, values), max_size=8),
    length=st.none() | st.integers(0, 10**6),
)
def test_encoded_headers_are_read_as_the_app_gave_it(
    reason: str, headers: list[tuple[str, str]], length: int | None
) -> None:
    try:
        start = ResponseStart(f"200 {reason}", headers)
    except BodyError:
        assert any(name.lower() == "content-length" for name, _ in headers)
        return
    framing = frame_response("GET", start.code, length)
    client = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
    client.send(h11.Request(method="GET", target="/", headers=[("Host", "h")]))
    client.receive_data(start.encode("1.1", framing, "Connection: close\r\n"))
    response = client.next_event()
    assert isinstance(response, h11.Response)
    read = [(name.decode(), value.decode("latin-1")) for name, value in response.headers]
    own = {("connection", "close")}
    own.add(("transfer-encoding", "chunked") if length is None else ("content-length", str(length)))
    assert own <= set(read)
    said = [(name.lower(), value) for name, value in start.headers]
    assert [field for field in read if field not in own or field in said] == said


def test_encoded_headers_have_its_lines_in_order() -> None:
    start = ResponseStart("200 OK", [("X-A", "1"), ("X-B", "2")])
    sized = start.encode("1.0", Framing(True, 3, False), "Connection: close\r\n")
    assert sized == (
        b"HTTP/1.0 200 OK\r\nConnection: close\r\nX-A: 1\r\nX-B: 2\r\nContent-Length: 3\r\n\r\n"
    )
    at_close = ResponseStart("299", []).encode("1.1", Framing(True, None, False), "")
    assert at_close == b"HTTP/1.1 299 \r\n\r\n"


def test_caches_of_names_and_statuses_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_names", {})
    monkeypatch.setattr(module, "_codes", {})
    for number in range(2 * module._MAX_CACHED):
        ResponseStart(f"200 {number}", [(f"X-{number}", "1")])
    assert len(module._names) <= module._MAX_CACHED
    assert len(module._codes) <= module._MAX_CACHED
    assert ResponseStart("200 one more", [("X-One-More", "\xe9")]).headers == [
        ("X-One-More", "\xe9")
    ]


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> dict[Any, ResponseStart]:
    """Return the cached headers."""
    cache: dict[Any, ResponseStart] = {}
    monkeypatch.setattr(module, "_starts", cache)
    return cache


def test_repeated_headers_come_from_the_cache(starts: dict[Any, ResponseStart]) -> None:
    def headers(value: str) -> list[tuple[str, str]]:
        return [("X-A", value), ("Content-Length", "5")]

    first = known_start(OK, headers("1"))
    assert known_start(OK, headers("1")) is first
    for other in (known_start(OK, headers("2")), known_start("200 Fine", headers("1"))):
        assert other is not first
    assert known_start(OK, headers("2")).headers == [("X-A", "2")]
    assert len(starts) == 3


@pytest.mark.parametrize(
    "headers",
    [
        [("SET-Cookie", "session=1")],
        [("X-A", "a" * 5000)],
        [["X-A", "1"]],
        (("X-A", "1"),),
        iter([("X-A", "1")]),
    ],
)
def test_long_or_cookie_setting_headers_are_not_cached(
    starts: dict[Any, ResponseStart], headers: Any
) -> None:
    assert len(known_start(OK, headers).headers) == 1
    assert not starts


class Said(str, Enum):  # noqa: UP042  (a StrEnum is formatted to its characters)
    """The format() of an enum's member returns its name."""

    STATUS = "200 OK"
    NAME = "X-A"
    VALUE = "1"


def test_member_of_an_enum_is_sent_by_its_characters(starts: dict[Any, ResponseStart]) -> None:
    """The characters are sent, not the result of format(), also in the next equal response."""
    expected = b"HTTP/1.1 200 OK\r\nX-A: 1\r\nContent-Length: 0\r\n\r\n"
    for name in (Said.NAME, "X-A", Said.NAME):
        for status in (Said.STATUS, "200 OK"):
            for value in (Said.VALUE, "1"):
                starts.clear()
                for _ in range(2):
                    start = known_start(status, [(name, value)])
                    assert start.encode("1.1", Framing(True, 0, False), "") == expected
                assert known_start("200 OK", [("X-A", "1")]) is start
                assert {type(text) for text in (start.status, *start.headers[0])} == {str}
    assert {type(text) for text in check_field(Said.NAME, Said.VALUE)} == {str}


@pytest.mark.parametrize("status", [OK, ["200 OK"], 200])
def test_wrong_headers_are_refused_each_time(starts: dict[Any, ResponseStart], status: Any) -> None:
    for _ in range(2):
        with pytest.raises(BodyError):
            known_start(status, [("X-A", 1)])
    assert not starts


def test_cache_of_headers_is_bounded(starts: dict[Any, ResponseStart]) -> None:
    for number in range(2 * module._MAX_STARTS + 10):
        assert known_start(OK, [("X-A", str(number))]).headers == [("X-A", str(number))]
    assert 0 < len(starts) <= module._MAX_STARTS


def test_headers_are_encoded_for_version_and_framing() -> None:
    """An object may have been encoded to different bytes before."""
    start = ResponseStart(OK, [("X-A", "1"), ("Content-Length", "5")])
    get, ask = start.frame("GET", chunks=True), start.frame("HEAD", chunks=True)
    assert (get.has_body, ask.has_body) == (True, False)
    assert start.frame("GET", chunks=False) == frame_response("GET", 200, 5, chunks=False)
    chunked = ResponseStart(OK, [])
    assert chunked.frame("GET", chunks=True).chunked
    assert not chunked.frame("GET", chunks=False).chunked
    own = "Connection: close\r\n"
    first = start.encode("1.1", get, own)
    assert start.encode("1.1", get, own) is first
    assert start.encode("1.0", get, own).startswith(b"HTTP/1.0 200 OK\r\nConnection: close\r\n")
    assert b"keep-alive" in start.encode("1.0", get, "Connection: keep-alive\r\n")
    assert b"Content-Length" not in start.encode("1.1", Framing(True, None, False), own)
    assert start.encode("1.1", get, own) == first
