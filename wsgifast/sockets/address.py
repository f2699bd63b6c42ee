"""HOST:PORT, as in options and environment variables."""

from __future__ import annotations

import re
import socket
from typing import NamedTuple

_PORT = re.compile(r"[0-9]{1,5}")


class Address(NamedTuple):
    """The address of a listener; port 0 is any free one."""

    host: str
    port: int

    @classmethod
    def read(cls, text: object) -> Address | None:
        """Parse HOST:PORT, [IPV6]:PORT or PORT (on 127.0.0.1); None for anything else."""
        if not isinstance(text, str):
            return None
        host, _, port = text.rpartition(":")
        is_bracketed = host.startswith("[") and host.endswith("]")
        if not _PORT.fullmatch(port) or int(port) > 65535 or (":" in host and not is_bracketed):
            return None
        return cls(host[1:-1] if is_bracketed else host or "127.0.0.1", int(port))

    @property
    def family(self) -> socket.AddressFamily:
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET

    def check_free(self) -> None:
        """:raises OSError: if nothing can listen there."""
        with socket.socket(self.family) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(self)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"
