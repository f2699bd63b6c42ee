"""What modules need that may be compiled (hatch_build.py), to mean the same when they are.

This module is not compiled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:

    def mypyc_attr(**options: bool) -> Any:
        """Options of a class, for mypyc alone."""
        return lambda decorated: decorated


_Error = TypeVar("_Error", bound=BaseException)


def let_others_run() -> None:
    """Let another thread have the GIL if one waits for it, and signal handlers run.

    CPython sees to both whenever a function of Python begins, as this one does. Compiled loops call
    it now and then.
    """


def caused_by(error: _Error, cause: BaseException | None) -> _Error:
    """Return an error to raise, as ``raise error from cause`` would: mypyc drops the `from`."""
    error.__cause__ = cause
    return error
