"""A fast SMTP server: aiosmtpd's controllers with :class:`SMTPServer`."""

from __future__ import annotations

import os
from typing import Any

from ..checks import LONGEST_S, checked_timeout, needs
from ..errors import ConfigurationError
from .session import Envelope, SMTPServer, check_options

with needs("wsgifast.mail.server", "aiosmtpd", "mail"):
    from aiosmtpd import controller as _controller

__all__ = [
    "Controller",
    "Envelope",
    "SMTPServer",
    "UnixSocketController",
    "UnixSocketUnthreadedController",
    "UnthreadedController",
]


class _FastFactory:
    """Makes a controller of aiosmtpd start an SMTPServer, with options given by keyword.

    They are checked here, since a controller that fails to start keeps its port bound.
    """

    handler: Any
    SMTP_kwargs: dict[str, Any]

    def __init__(self, *args: Any, **options: Any) -> None:
        check_options(**options)
        spool_dir = options.get("spool_dir")
        if spool_dir is not None and not os.path.isdir(spool_dir):
            raise ConfigurationError(f"spool_dir is {spool_dir!r}, which is not a directory")
        if "ready_timeout" in options:  # for threading.Event, which takes no math.inf
            limit = checked_timeout(options["ready_timeout"], "ready_timeout")
            options["ready_timeout"] = LONGEST_S if limit is None else limit
        super().__init__(*args, **options)

    def factory(self) -> SMTPServer:
        return SMTPServer(self.handler, **self.SMTP_kwargs)


class Controller(_FastFactory, _controller.Controller):
    """aiosmtpd's Controller with an :class:`SMTPServer`, in a thread of its own, on a TCP port.

    It takes the options of both.
    """


class UnthreadedController(_FastFactory, _controller.UnthreadedController):
    """The same in the caller's event loop."""


class UnixSocketController(_FastFactory, _controller.UnixSocketController):
    """The same in a thread of its own, on a Unix socket."""


class UnixSocketUnthreadedController(_FastFactory, _controller.UnixSocketUnthreadedController):
    """The same in the caller's event loop, on a Unix socket."""
