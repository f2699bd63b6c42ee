"""PEP 3333's rule of a second start_response."""

from __future__ import annotations

import sys

import pytest

from wsgifast import BodyError
from wsgifast.bodies.held_head import check_second_start


@pytest.mark.parametrize("sent", [False, True])
def test_second_start_takes_exc_info(sent: bool) -> None:
    with pytest.raises(BodyError, match=r"^my app called start_response twice without exc_info"):
        check_second_start(None, sent=sent, app="my app")


def test_second_start_replaces_an_unsent_head() -> None:
    try:
        raise KeyError("broken")
    except KeyError:
        check_second_start(sys.exc_info(), sent=False)


def test_second_start_after_the_head_raises_the_apps_error() -> None:
    error = KeyError("broken")
    try:
        raise error
    except KeyError:
        with pytest.raises(KeyError) as caught:
            check_second_start(sys.exc_info(), sent=True)
    assert caught.value is error


def test_second_start_with_an_empty_exc_info_is_refused() -> None:
    check_second_start((None, None, None), sent=False)
    with pytest.raises(BodyError, match="inside the except block"):
        check_second_start((None, None, None), sent=True)
