"""Whole responses: a plan is applied to real bytes, and other parsers read the result."""

from __future__ import annotations

import email.parser
import email.policy
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsgifast.files import ByteRange, Plan, Representation, RequestFacts, describe, stat_etag

MTIME_NS = 784111777_123456789
DATE = "Sun, 06 Nov 1994 08:49:37 GMT"
NOW = 1_700_000_000.0
CONTENT = bytes(range(256)) * 4
CORS = ("Access-Control-Allow-Origin", "*")
CACHE = ("Cache-Control", "max-age=60")


def a_file(content: bytes = CONTENT, **changes: Any) -> Representation:
    """Return a text file of 1994 with CORS and cache headers."""
    conditions: dict[str, Any] = {
        "size": len(content),
        "mtime_ns": MTIME_NS,
        "now": NOW,
        "etag": stat_etag(len(content), MTIME_NS, changes.get("coding")),
        "headers": [CORS, CACHE],
    }
    conditions.update(changes)
    if not any(name.lower() == "content-type" for name, _ in conditions["headers"]):
        conditions["headers"] = [("Content-Type", "text/plain"), *conditions["headers"]]
    return describe(**conditions)


def plan(representation: Representation, method: str = "GET", **headers: Any) -> Plan:
    return representation.plan(RequestFacts(method, **headers), boundary=lambda: "B")


def body(plan: Plan, content: bytes = CONTENT) -> bytes:
    """Apply a plan to the bytes."""
    return b"".join(
        segment
        if isinstance(segment, bytes)
        else content[segment.offset : segment.offset + segment.size]
        for segment in plan.segments
    )


def headers(plan: Plan) -> dict[str, str]:
    names = [name.lower() for name, _ in plan.headers]
    assert len(set(names)) == len(names), f"a header is there twice: {plan.headers}"
    return {name.lower(): value for name, value in plan.headers}


def parts(plan: Plan) -> list[tuple[Any, Any, Any]]:
    """Read a multipart response with the standard library's MIME parser."""
    block = f"Content-Type: {headers(plan)['content-type']}\r\n\r\n".encode()
    message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(block + body(plan))
    assert message.get_content_type() == "multipart/byteranges"
    assert message.defects == []
    return [
        (part["Content-Type"], part["Content-Range"], part.get_payload(decode=True))
        for part in message.iter_parts()
    ]


def test_plan_of_a_whole_file_is_a_200() -> None:
    file = a_file()
    response = plan(file)
    assert response.status_line == "200 OK"
    assert headers(response) == {
        "content-length": "1024",
        "accept-ranges": "bytes",
        "content-type": "text/plain",
        "last-modified": DATE,
        "etag": file.etag,
        "access-control-allow-origin": "*",
        "cache-control": "max-age=60",
    }
    assert body(response) == CONTENT
    assert response.segments == [ByteRange(0, 1024)]
    assert (b"content-length", b"1024") in response.raw_headers
    assert (b"content-type", b"text/plain") in response.raw_headers


def test_responses_without_ranges_are_made_once() -> None:
    file = a_file()
    assert plan(file) is plan(file)
    assert plan(file, "HEAD") is plan(file, "HEAD")
    assert plan(file, if_none_match="*") is plan(file, if_none_match="*")
    assert plan(file).raw_headers is plan(file).raw_headers


def test_plan_of_one_range_is_a_206() -> None:
    response = plan(a_file(), range="bytes=-24")
    assert response.status_line == "206 Partial Content"
    assert headers(response) == {
        **headers(plan(a_file())),
        "content-length": "24",
        "content-range": "bytes 1000-1023/1024",
    }
    assert body(response) == CONTENT[-24:]


def test_plan_of_several_ranges_is_multipart() -> None:
    response = plan(a_file(), range="bytes=500-509,0-0,-1")
    assert response.status == 206
    assert headers(response) == {
        **headers(plan(a_file())),
        "content-type": "multipart/byteranges; boundary=B",
        "content-length": str(len(body(response))),
    }
    assert parts(response) == [
        ("text/plain", "bytes 500-509/1024", CONTENT[500:510]),
        ("text/plain", "bytes 0-0/1024", CONTENT[:1]),
        ("text/plain", "bytes 1023-1023/1024", CONTENT[-1:]),
    ]
    assert [type(segment) for segment in response.segments] == [
        *(bytes, ByteRange) * 3,
        bytes,
    ]


def test_boundary_differs_each_time() -> None:
    conditions = RequestFacts(range="bytes=0-0,9-9")
    types = {headers(a_file().plan(conditions))["content-type"] for _ in range(20)}
    assert len(types) == 20


def test_plan_of_an_unsatisfiable_range_is_a_416() -> None:
    file = a_file()
    response = plan(file, range="bytes=1024-")
    assert response.status_line == "416 Range Not Satisfiable"
    assert headers(response) == {
        "content-range": "bytes */1024",
        "content-length": "0",
        "content-type": "text/plain; charset=utf-8",  # not the file's headers
        "accept-ranges": "bytes",
        "access-control-allow-origin": "*",
    }
    assert body(response) == b""


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT"])
def test_plan_ignores_the_range_of_other_methods(method: str) -> None:
    assert plan(a_file(), method, range="bytes=0-0").status == 200


def test_plan_of_a_stale_if_range_is_the_whole_file() -> None:
    file = a_file()
    assert file.etag
    for good in (file.etag, DATE):
        assert plan(file, range="bytes=0-0", if_range=good).status == 206
    for bad in (f"W/{file.etag}", '"x"', "Sun, 06 Nov 1994 08:49:38 GMT", "junk"):
        response = plan(file, range="bytes=0-0", if_range=bad)
        assert response.status == 200, bad
        assert body(response) == CONTENT
        # The range is not evaluated, even if it could not be satisfied.
        assert plan(file, range="bytes=9999-", if_range=bad).status == 200
    # If-Range has no effect without Range.
    assert plan(file, if_range='"x"').status == 200


def test_matching_tag_is_a_304() -> None:
    file = a_file()
    assert file.etag
    for response in (
        plan(file, if_none_match=file.etag),
        plan(file, "HEAD", if_none_match=f"W/{file.etag}"),
        plan(file, if_modified_since=DATE),
        # Preconditions are evaluated before Range.
        plan(file, if_none_match=file.etag, range="bytes=0-0"),
        plan(file, if_none_match=file.etag, range="bytes=9999-"),
    ):
        assert response.status_line == "304 Not Modified"
        assert headers(response) == {
            "accept-ranges": "bytes",
            "etag": file.etag,
            "access-control-allow-origin": "*",
            "cache-control": "max-age=60",
        }
        assert response.segments == ()


def test_304_without_a_tag_has_the_date() -> None:
    response = plan(a_file(etag=None), if_modified_since=DATE)
    assert headers(response)["last-modified"] == DATE


def test_failed_precondition_is_a_412() -> None:
    response = plan(a_file(), if_match='"x"', range="bytes=0-0")
    assert response.status_line == "412 Precondition Failed"
    assert headers(response) == {
        "content-length": "0",
        "content-type": "text/plain; charset=utf-8",
        "accept-ranges": "bytes",
        "access-control-allow-origin": "*",
    }
    assert body(response) == b""
    assert plan(a_file(), if_unmodified_since="Sat, 05 Nov 1994 00:00:00 GMT").status == 412


@pytest.mark.parametrize("conditions", [{"if_match": '"x"'}, {"range": "bytes=1024-"}])
def test_error_has_no_cache_control_of_the_file(conditions: dict[str, str]) -> None:
    of_the_file = {
        "Cache-Control": "public, max-age=31536000",
        "CDN-Cache-Control": "max-age=60",
        "Surrogate-Control": "max-age=60",
        "Expires": "Thu, 01 Dec 2044 16:00:00 GMT",
        "ETag": '"a"',
        "Last-Modified": DATE,
        "Content-Disposition": "attachment",
        "Content-Location": "/elsewhere",
        "Content-Digest": "sha-256=:x:",
    }
    preserved = {"Set-Cookie": "a=1", "Vary": "Cookie", "Access-Control-Allow-Origin": "*"}
    file = Representation(1024, [*of_the_file.items(), *preserved.items()])
    refused = headers(plan(file, **conditions))
    assert not refused.keys() & {name.lower() for name in of_the_file}
    assert preserved.items() <= dict(plan(file, **conditions).headers).items()
    # A 304 updates the headers of the file in a cache.
    fresh = headers(plan(file, if_none_match="*"))
    assert {"cache-control", "expires", "etag"} <= fresh.keys()


def test_part_has_no_digest_of_the_whole() -> None:
    file = Representation(1024, [("Content-Digest", "sha-256=:x:"), ("Repr-Digest", "sha-256=:x:")])
    for header in ("bytes=0-0", "bytes=0-0,9-9"):
        said = headers(plan(file, range=header))
        assert "content-digest" not in said
        assert "repr-digest" in said


# Descriptions of files


@pytest.mark.parametrize("mtime_ns", [0, 10**9, -(10**9), -(10**18)])
def test_unknown_file_time_sends_no_date(mtime_ns: int) -> None:
    file = a_file(mtime_ns=mtime_ns, etag=stat_etag(1024, mtime_ns))
    assert not headers(plan(file)).keys() & {"last-modified", "etag"}
    # A file of unknown time is not "unchanged since ever".
    assert plan(file, if_modified_since=DATE).status == 200
    assert plan(file, range="bytes=0-0", if_range="Thu, 01 Jan 1970 00:00:00 GMT").status == 200


@pytest.mark.parametrize("seconds_ahead", [1, 3600, 10**9, 10**18])
def test_file_from_the_future_has_the_date_of_now(seconds_ahead: int) -> None:
    file = a_file(mtime_ns=int(NOW + seconds_ahead) * 10**9)
    said = headers(plan(file))["last-modified"]
    # NOW, since Last-Modified is never later than Date
    assert said == "Tue, 14 Nov 2023 22:13:20 GMT"
    # That date is the clock's and not the file's, so it is no validator.
    assert plan(file, if_modified_since=said).status == 200
    assert plan(file, range="bytes=0-0", if_range=said).status == 200
    assert plan(file, if_unmodified_since=said).status == 412


def test_given_headers_replace_those_made() -> None:
    file = a_file(
        headers=[
            ("etag", '"mine"'),
            ("content-type", "text/html"),
            ("last-modified", "Sun, 06 Nov 1994 08:49:38 GMT"),
        ]
    )
    assert headers(plan(file)) == {
        "content-length": "1024",
        "accept-ranges": "bytes",
        "etag": '"mine"',
        "content-type": "text/html",
        "last-modified": "Sun, 06 Nov 1994 08:49:38 GMT",
    }
    assert plan(file, if_none_match='"mine"').status == 304
    assert plan(file, if_modified_since=DATE).status == 200
    assert plan(file, if_modified_since="Sun, 06 Nov 1994 08:49:38 GMT").status == 304
    assert parts(plan(file, range="bytes=0-0,2-2"))[0][0] == "text/html"


def test_given_headers_alone_describe_a_file() -> None:
    """The headers for a body after the app has written its own."""
    file = Representation(
        1024,
        [
            ("ETag", ' W/"a"'),
            ("Last-Modified", DATE),
            ("Content-Type", "a/b"),
            ("Set-Cookie", "c=1"),
            ("Set-Cookie", "d=2"),
        ],
    )
    assert file.headers[-1] == ("Content-Length", "1024")
    sized = [("content-length", "1024")]
    assert Representation(1024, sized).headers == tuple(sized)  # the header is not repeated
    assert plan(file, if_none_match='"a"').status == 304
    assert plan(file, range="bytes=0-0", if_range='W/"a"').status == 200
    assert plan(file, range="bytes=0-0", if_range=DATE).status == 206
    for response in (
        plan(file),
        plan(file, if_none_match='"a"'),
        plan(file, range="bytes=0-0"),
        plan(file, range="bytes=0-0,2-2"),
        plan(file, range="bytes=9999-"),
    ):
        cookies = [value for name, value in response.headers if name == "Set-Cookie"]
        assert cookies == ["c=1", "d=2"]


@pytest.mark.parametrize("tag", ["unquoted", "", 'w/"x"', '"a"b"', '"a', 'a"', '"a b"', '"\u20ac"'])
@pytest.mark.parametrize("name", ["if_match", "if_none_match"])
def test_malformed_tag_is_not_compared(tag: str, name: str) -> None:
    file = Representation(1024, [("ETag", tag), ("Last-Modified", DATE)])
    for sent in (tag, f'"{tag}"', '"other"', "*"):
        conditions = {name: sent, "if_modified_since": DATE}
        # No range is sent, because it might belong to another content than the client's.
        assert plan(file, range="bytes=0-0", **conditions) is plan(file)
        assert plan(file, "HEAD", **conditions) is plan(file, "HEAD")
        assert plan(file, range="bytes=0-0", if_range=sent).status == 200
    assert plan(file, range="bytes=0-0", if_range=DATE).status == 206
    assert plan(file, range="bytes=0-0").status == 206
    assert plan(file, if_modified_since=DATE).status == 304
    assert dict(plan(file).headers)["ETag"] == tag  # the app must fix it


# Bytes in memory


@pytest.mark.parametrize("header", [None, "bytes=5-9", "bytes=0-9,20-29", "bytes=2000-"])
def test_body_in_memory_is_planned_as_bytes(header: str | None) -> None:
    from_file = plan(a_file(), **({} if header is None else {"range": header}))
    at_hand = a_file(body=CONTENT)
    from_memory = plan(at_hand, **({} if header is None else {"range": header}))
    assert from_memory.headers == from_file.headers
    assert all(isinstance(segment, bytes) for segment in from_memory.segments)
    assert body(from_memory) == body(from_file)


def test_responses_about_a_negotiated_file_have_vary() -> None:
    for conditions in (
        RequestFacts(),
        RequestFacts(if_none_match="*"),
        RequestFacts(if_match='"x"'),
        RequestFacts(range="bytes=0-0"),
        RequestFacts(range="bytes=0-0,2-2"),
        RequestFacts(range="bytes=9999-"),
        RequestFacts("HEAD"),
    ):
        assert headers(a_file(vary="Accept-Encoding").plan(conditions))["vary"] == "Accept-Encoding"


# Random requests

_values = st.none() | st.text(max_size=40)
_sensible = st.sampled_from(
    [
        None,
        "*",
        '"x"',
        stat_etag(1024, MTIME_NS),
        DATE,
        "bytes=0-0",
        "bytes=5-1,-9",
        "bytes=9-,-9",
        "bytes=0-5,900-905,990-2000",
        "bytes=2000-",
    ]
)


@given(st.sampled_from(["GET", "HEAD"]), st.lists(_sensible | _values, min_size=7, max_size=7))
def test_any_request_gets_a_legal_response(method: str, values: Sequence[Any]) -> None:
    file = a_file()
    response = file.plan(RequestFacts(method, *values))
    sent = body(response)
    said = headers(response)
    assert response.status in (200, 206, 304, 412, 416)
    assert said["access-control-allow-origin"] == "*"
    if response.status == 304:
        assert "content-length" not in said
        assert sent == b""
    elif method == "HEAD" and response.status == 200:
        assert said["content-length"] == "1024"
        assert sent == b""
    else:
        assert int(said["content-length"]) == len(sent)
    if response.status == 200 and method == "GET":
        assert sent == CONTENT
    if response.status == 206 and "content-range" not in said:
        for content_type, content_range, content in parts(response):
            first, last = content_range.removeprefix("bytes ").removesuffix("/1024").split("-")
            assert content == CONTENT[int(first) : int(last) + 1]
            assert content_type == "text/plain"
    elif response.status == 206:
        first, last = said["content-range"].removeprefix("bytes ").removesuffix("/1024").split("-")
        assert sent == CONTENT[int(first) : int(last) + 1]
