"""What a test can do with sources, and not with modules that are compiled."""

from __future__ import annotations

import pytest

from wsgifast.server import server

COMPILED = not server.__file__.endswith(".py")

# Compiled modules call each other directly, and their classes are closed.
replaces_parts = pytest.mark.skipif(
    COMPILED, reason="it replaces a part of a module, which is compiled"
)
