"""Where a server is scraped: an address of its own, so that it is never public by accident."""

from __future__ import annotations

from ..errors import ConfigurationError
from ..sockets.address import Address

__all__ = ["VARIABLE", "metrics_address"]

# The environment variable that has it.
VARIABLE = "WSGIFAST_METRICS"


def metrics_address(text: object, name: str = VARIABLE) -> Address:
    """Read HOST:PORT, [IPV6]:PORT, or a port on 127.0.0.1.

    :param name: of the option, for errors.
    :raises ConfigurationError: if it is none of them.
    """
    address = Address.read(text)
    if address is None or not address.port:
        raise ConfigurationError(
            f"{name}={text!r}: expected a host and a port such as '127.0.0.1:9100' or '[::1]:9100'"
        )
    return address
