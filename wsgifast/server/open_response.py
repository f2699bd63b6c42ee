"""The response that hooks and loggers get.

They may add attributes, and refer to it weakly, which compiled classes do not allow. This module is
not compiled.
"""

from __future__ import annotations

from .response import Response


class OpenResponse(Response):
    """A :class:`.Response` that takes what others add to it."""
