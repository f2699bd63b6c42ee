"""Which gunicorn FastWorker works with, and a check that it is the one installed.

Importable with any gunicorn and without one: the error for an unsupported version must not fail
on it. In a gunicorn that is supported, the parts used can be imported.
"""

from __future__ import annotations

import re

from ..checks import needs
from ..errors import WSGIFastError

# The oldest has the choice of a parser, HTTP/2 without TLS and the header checks of today.
OLDEST = (26, 2)
NEWEST_MAJOR = 27


class UnsupportedGunicorn(WSGIFastError, RuntimeError):
    """The installed gunicorn is not one that FastWorker works with: install another.

    A RuntimeError too: gunicorn's command prints those as a sentence.
    """


def check_gunicorn(version: str | None = None) -> None:
    """Check that the installed gunicorn is in the supported range.

    :param version: by default that of the installed one.
    :raises UnsupportedGunicorn: with a sentence naming the installed and the supported versions.
    :raises MissingExtra: if none is installed.
    """
    with needs("wsgifast.workers", "gunicorn", "gunicorn"):
        import gunicorn
    version = version or gunicorn.__version__
    numbers = [int(number) for number in re.findall(r"\d+", version)[:2]]
    supported = f"FastWorker works with gunicorn {OLDEST[0]}.{OLDEST[1]} to {NEWEST_MAJOR}.x"
    if tuple(numbers) < OLDEST or numbers[0] > NEWEST_MAJOR:
        raise UnsupportedGunicorn(
            f"gunicorn {version} is installed, but {supported}: install one of these, "
            "or a newer wsgifast"
        )
