"""PEP 3333's rule of a second start_response ("The start_response() Callable")."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import BodyError

if TYPE_CHECKING:
    from _typeshed import OptExcInfo


def check_second_start(exc_info: OptExcInfo | None, *, sent: bool, app: str = "the app") -> None:
    """Check a call of start_response that is not the first, or has exc_info.

    The caller deletes its own exc_info afterwards: its frame and the traceback refer to each other.

    :param sent: whether the head has been sent, so that it cannot be replaced.
    :param app: its name, for the message.
    :raises BodyError: without exc_info; if the head has been sent, also with one that is empty.
    :raises BaseException: that of exc_info, if the head has been sent.
    """
    try:
        if not exc_info:
            raise BodyError(f"{app} called start_response twice without exc_info (PEP 3333)")
        if sent:
            if exc_info[1] is None:
                raise BodyError(
                    f"{app} called start_response after its head was sent, with an exc_info that "
                    "has no exception: call it inside the except block"
                )
            raise exc_info[1].with_traceback(exc_info[2])
    finally:
        exc_info = None
