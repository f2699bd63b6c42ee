"""What every request must bring along."""

from __future__ import annotations

import pytest

from wsgifast.errors import MalformedRequest
from wsgifast.http.syntax import check_host


@pytest.mark.parametrize(
    "value",
    [
        "a", "a.test", "a.test:80", "a.test:", "", ":80", "127.0.0.1", "[::1]", "[::1]:8000",
        "[v1.a:b]", "under_score", "a-b~c", "%C3%A4.test", "a!$&'()*+,;=b",
    ],
)  # fmt: skip
def test_hosts(value: str) -> None:
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
def test_what_is_no_host(value: str) -> None:
    for http11 in (True, False):
        with pytest.raises(MalformedRequest):
            check_host([value], http11=http11)


def test_how_many_there_are() -> None:
    check_host([], http11=False)
    with pytest.raises(MalformedRequest, match="0 Host headers"):
        check_host([], http11=True)
    for http11 in (True, False):
        with pytest.raises(MalformedRequest, match="2 Host headers"):
            check_host(["a", "a"], http11=http11)
