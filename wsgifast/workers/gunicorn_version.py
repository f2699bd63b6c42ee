"""Checks of the installed gunicorn: the names that FastWorker uses, and whether it is tested.

This module can be imported with any gunicorn and without one, because it makes the error for an
unsupported version.
"""

from __future__ import annotations

from ..checks import needs
from ..errors import WSGIFastError
from ..hosts import GUNICORN, numbers

SUPPORTED = (
    f"gunicorn {'.'.join(GUNICORN.oldest.split('.')[:2])} to {GUNICORN.newest.split('.')[0]}.x"
)


class UnsupportedGunicorn(WSGIFastError, RuntimeError):
    """The installed gunicorn lacks a name that FastWorker uses, or is too old.

    A RuntimeError too: gunicorn's command prints those as a sentence.
    """


def gunicorn_version() -> str:
    """Return the version of the installed gunicorn.

    :raises MissingExtra: if none is installed.
    """
    with needs("wsgifast.workers", "gunicorn", "gunicorn"):
        import gunicorn
    return str(gunicorn.__version__)


def is_tested() -> bool:
    """Return whether the installed gunicorn is one that FastWorker is tested with."""
    return gunicorn_version() in GUNICORN.tested


def check_gunicorn(part: str = "FastWorker") -> None:
    """Check that the installed gunicorn has every name that a part of ours uses.

    :param part: "FastWorker" or "JSONLogger".
    :raises UnsupportedGunicorn: with the missing names, the supported versions and the way back.
    :raises MissingExtra: if none is installed.
    """
    version = gunicorn_version()
    way_out = f"install {SUPPORTED} or a newer wsgifast, or start gunicorn with `-k gthread`"
    if numbers(version) < numbers(GUNICORN.oldest):
        raise UnsupportedGunicorn(
            f"gunicorn {version} is installed, but {part} works with {SUPPORTED}: {way_out}"
        )
    if missing := GUNICORN.missing(part):
        raise UnsupportedGunicorn(
            f"gunicorn {version} has no {', '.join(missing)}, which {part} uses: {way_out}"
        )


def untested_note(*, has_httptools: bool) -> str | None:
    """Return a line for the log if the installed gunicorn is not a tested one, else None.

    :param has_httptools: httptools would parse requests with a tested one.
    """
    if is_tested():
        return None
    note = (
        f"gunicorn {gunicorn_version()} is untested with FastWorker. Tested are "
        f"{', '.join(GUNICORN.tested)}"
    )
    if has_httptools:
        note += ". So gunicorn's own parser parses all requests, and httptools none"
    return note
