"""The headers that FastWorker adds to every response: Server, Date and Connection."""

from __future__ import annotations

import time

from ..files import http_date

__all__ = ["header_lines"]


class HeaderLines:
    """The server's own header lines, made anew when Date changes (RFC 9110 section 6.6.1).

    What holds for a second is kept in one attribute: threads that come in between two of them see
    the one or the other.
    """

    def __init__(self) -> None:
        self._now: tuple[int, str, dict[tuple[str | None, str, bool], str]] = (0, "", {})

    def date(self) -> str:
        return self._look(time.time())[1]

    def get(self, server_name: str | None, connection: str, *, dates: bool) -> str:
        """The lines of one response; the same object throughout a second.

        :param server_name: None: the app has said it.
        :param dates: whether Date is among them.
        """
        now = self._now
        seconds = time.time()
        if not 0 <= seconds - now[0] < 1:
            now = self._look(seconds)
        _, date, made = now
        key = server_name, connection, dates
        lines = made.get(key)
        if lines is None:
            lines = f"Connection: {connection}\r\n"
            if dates:
                lines = f"Date: {date}\r\n{lines}"
            if server_name is not None:
                lines = f"Server: {server_name}\r\n{lines}"
            lines = made.setdefault(key, lines)
        return lines

    def _look(self, seconds: float) -> tuple[int, str, dict[tuple[str | None, str, bool], str]]:
        second = int(seconds)
        now = self._now
        if second != now[0]:
            self._now = now = second, http_date(second), {}
        return now


header_lines = HeaderLines()
