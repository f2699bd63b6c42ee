"""The limits of a lingering close."""

from __future__ import annotations

import pytest

from wsgifast.sockets import closing
from wsgifast.sockets.closing import LINGER_S, Lingering


def test_lingering_ends_when_the_client_closes() -> None:
    assert not Lingering(0.0).should_continue(0, 0.0)


def test_lingering_has_a_limit_of_time() -> None:
    limits = Lingering(100.0)
    assert limits.deadline == 100.0 + LINGER_S
    now = 100.0
    while now < limits.deadline:
        now += LINGER_S / 2
        assert limits.should_continue(1, now)
    assert limits.deadline == 130.0


def test_lingering_has_a_limit_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "_LINGER_BYTES", 1000)
    limits = Lingering(0.0)
    assert limits.should_continue(999, 0.0)
    assert not limits.should_continue(1, 0.0)


def test_lingering_at_the_end_has_a_limit_of_silence() -> None:
    limits = Lingering(0.0)
    assert limits.should_continue(1, 5.0)
    limits.hurry()
    assert limits.should_continue(1, 7.0)
    assert limits.deadline == 5.0 + LINGER_S
