"""How long a request waited before it arrived, by the header of the proxy in front."""

from __future__ import annotations

import pytest

from wsgifast.bodies.access_log import queue_seconds

ARRIVED = 1_700_000_000.5


@pytest.mark.parametrize(
    ("request_start", "seconds"),
    [
        ("t=1700000000.250", 0.25),  # nginx: t=${msec}
        ("1700000000.250", 0.25),
        ("1700000000", 0.5),
        ("1700000000250", 0.25),  # Heroku
        ("t=1700000000250000", 0.25),
        ("1700000001", 0.0),  # the proxy's clock is ahead
        ("1699990000", None),  # a wrong clock or an invented value
        (None, None),
        ("", None),
        ("t=", None),
        ("now", None),
        ("-1", None),
        ("1e9", None),
        ("1_700_000_000", None),
        ("\u0661", None),
        ("9" * 400, None),
    ],
)
def test_queue_time_is_read_from_x_request_start(
    request_start: str | None, seconds: float | None
) -> None:
    assert queue_seconds(request_start, ARRIVED) == pytest.approx(seconds)
