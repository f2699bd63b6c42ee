"""Where a server is scraped: an address of its own, so that it is never public by accident."""

from __future__ import annotations

import socket
from typing import NamedTuple

from ..errors import ConfigurationError

__all__ = ["VARIABLE", "Address"]

# The environment variable that has it.
VARIABLE = "WSGIFAST_METRICS"


class Address(NamedTuple):
    """A host and a port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: object, name: str = VARIABLE) -> Address:
        """Read HOST:PORT, [IPV6]:PORT, or a port on 127.0.0.1.

        :param name: of the option, for errors.
        :raises ConfigurationError: if it is none of them.
        """
        host, _, port = str(text).rpartition(":")
        host = host or "127.0.0.1"
        is_bracketed = host.startswith("[") and host.endswith("]")
        number = int(port) if port.isascii() and port.isdecimal() and len(port) < 6 else 0
        is_host = isinstance(text, str) and (is_bracketed or ":" not in host)
        if not is_host or not 0 < number < 65536:
            raise ConfigurationError(
                f"{name}={text!r}: expected a host and a port such as '127.0.0.1:9100' or "
                "'[::1]:9100'"
            )
        return cls(host[1:-1] if is_bracketed else host, number)

    @property
    def family(self) -> socket.AddressFamily:
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET

    def check_free(self) -> None:
        """:raises OSError: if nobody could be served there."""
        with socket.socket(self.family) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(self)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"
