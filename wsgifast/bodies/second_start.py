"""PEP 3333's rule of a second start_response ("The start_response() Callable")."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import BodyError

if TYPE_CHECKING:
    from _typeshed import OptExcInfo

__all__ = ["check_second_start"]


def check_second_start(exc_info: OptExcInfo | None, *, sent: bool, app: str = "the app") -> None:
    """To be called where an app calls start_response again, or with exc_info.

    The caller lets go of its own exc_info behind it: its frame and the traceback would keep each
    other alive.

    :param sent: whether the first head has been sent, so that no other can be.
    :param app: its name, for the message.
    :raises BodyError: without exc_info.
    :raises BaseException: that of exc_info, if the head has been sent.
    """
    try:
        if not exc_info:
            raise BodyError(f"{app} called start_response twice without exc_info (PEP 3333)")
        if sent and exc_info[1] is not None:
            raise exc_info[1].with_traceback(exc_info[2])
    finally:
        exc_info = None
