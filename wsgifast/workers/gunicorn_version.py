"""Check whether the installed gunicorn is supported and tested.

This module can be imported with any version of gunicorn, and without gunicorn, because it reports
an unsupported version.
"""

from __future__ import annotations

from ..checks import needs
from ..errors import WSGIFastError
from ..hosts import GUNICORN, numbers

SUPPORTED = (
    f"gunicorn {'.'.join(GUNICORN.oldest.split('.')[:2])} to {GUNICORN.newest.split('.')[0]}.x"
)


class UnsupportedGunicorn(WSGIFastError, RuntimeError):
    """Raised if the installed gunicorn is too old, or does not have a name that FastWorker uses.

    It is a RuntimeError, because gunicorn's command prints such errors without a traceback.
    """


def gunicorn_version() -> str:
    """Return the version of the installed gunicorn.

    :raises MissingExtra: if gunicorn is not installed.
    """
    with needs("wsgifast.workers", "gunicorn", "gunicorn"):
        import gunicorn
    return str(gunicorn.__version__)


def is_tested() -> bool:
    """Return whether FastWorker is tested with the installed gunicorn."""
    return gunicorn_version() in GUNICORN.tested


def check_gunicorn(part: str = "FastWorker") -> None:
    """Check that the installed gunicorn has every name that FastWorker or JSONLogger uses.

    :param part: "FastWorker" or "JSONLogger".
    :raises UnsupportedGunicorn: with the missing names, the supported versions and remedies.
    :raises MissingExtra: if gunicorn is not installed.
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
    """Return a line for the log if FastWorker is not tested with the installed gunicorn.

    :param has_httptools: whether httptools would parse requests with a tested gunicorn.
    :returns: None for a tested gunicorn.
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
