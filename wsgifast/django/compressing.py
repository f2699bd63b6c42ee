"""The setting WSGIFAST_COMPRESS, apart from the others: the ASGI half reads it, too."""

from __future__ import annotations

import inspect

from django.conf import settings

from ..compression.policy import Compression, compression_for
from ..errors import ConfigurationError


def compression() -> Compression | None:
    """Return how static files, and the responses of both applications, are compressed.

    WSGIFAST_COMPRESS is True, or a dictionary of :class:`wsgifast.Compression`'s options.

    :raises ConfigurationError: if it is invalid.
    """
    given = getattr(settings, "WSGIFAST_COMPRESS", False)
    if isinstance(given, dict):
        known = set(inspect.signature(Compression).parameters)
        unknown = [name for name in given if name not in known]
        if unknown:
            raise ConfigurationError(
                f"WSGIFAST_COMPRESS has no option {unknown[0]!r}; it has {', '.join(sorted(known))}"
            )
        return Compression(**given)
    try:
        return compression_for(given)
    except ConfigurationError:
        raise ConfigurationError(
            f"WSGIFAST_COMPRESS={given!r}: True, False, or a dictionary of options"
        ) from None
