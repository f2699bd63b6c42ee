"""Headers: names are compared without case, and the order is preserved."""

from __future__ import annotations

import pytest

from wsgifast.http.headers import Headers

GIVEN = [("Content-Type", "text/html"), ("X-A", "1"), ("x-a", "2"), ("ETag", '"a"')]


@pytest.mark.parametrize(
    ("name", "value"),
    [("x-a", "1"), ("etag", '"a"'), ("vary", None)],
)
def test_get_returns_the_first_value(name: str, value: str | None) -> None:
    assert Headers(GIVEN).get(name) == value


def test_values_are_found_by_lower_case_names() -> None:
    headers = Headers(GIVEN)
    assert headers.get_all("x-a") == ["1", "2"]
    assert headers.names() == {"content-type", "x-a", "etag"}
    assert headers.by_name() == {"content-type": "text/html", "x-a": "2", "etag": '"a"'}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("X-A", [GIVEN[0], ("X-A", "new"), GIVEN[3]]),
        ("etag", [*GIVEN[:3], ("etag", "new")]),
        ("Vary", [*GIVEN, ("Vary", "new")]),
    ],
)
def test_set_replaces_all_at_the_first_place(name: str, expected: list[tuple[str, str]]) -> None:
    headers = Headers(GIVEN)
    headers.set(name, "new")
    assert headers == expected


def test_without_leaves_the_original_unchanged() -> None:
    headers = Headers(GIVEN)
    assert headers.without({"x-a", "vary"}) == [GIVEN[0], GIVEN[3]]
    assert headers == GIVEN


def test_raw_headers_have_names_in_lower_case() -> None:
    raw = Headers([("ETag", '"\xe4"')]).raw()
    assert raw == [(b"etag", b'"\xe4"')]
    assert Headers.from_raw(raw) == [("etag", '"\xe4"')]


def test_names_are_forgotten_beyond_a_bound() -> None:
    for number in range(2000):
        assert Headers([(f"X-{number}", "")]).get(f"x-{number}") == ""


@pytest.mark.parametrize(
    ("vary", "expected"),
    [
        ([], ["Accept-Encoding"]),
        (["Cookie"], ["Cookie, Accept-Encoding"]),
        (["Cookie", "Origin"], ["Cookie", "Origin, Accept-Encoding"]),
        (["accept-encoding"], ["accept-encoding"]),
        (["Cookie, Accept-ENCODING", "Origin"], ["Cookie, Accept-ENCODING", "Origin"]),
        (["*"], ["*"]),
        ([""], ["", "Accept-Encoding"]),
        (["Accept-Encoding-Not"], ["Accept-Encoding-Not, Accept-Encoding"]),
    ],
)
def test_vary_is_merged(vary: list[str], expected: list[str]) -> None:
    headers = Headers([("Vary", value) for value in vary]).with_vary()
    assert [value for _, value in headers] == expected
