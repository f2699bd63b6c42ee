"""Two releases of a script, for the tests of deltas."""

from __future__ import annotations

from typing import Any

from tests.static.calls import Answered, call
from tests.support.decoders import BROWSERS, available

LINES = [f"function f{number}() {{ return {number * 7919 % 1009}; }}\n" for number in range(4000)]
OLD = "".join(LINES).encode()
NEW = "".join([*LINES[:2000], "let added = true;\n", *LINES[2001:]]).encode()
OLD_NAME, NEW_NAME = "app.0a1b2c3d.js", "app.4e5f6a7b.js"
VARY = "Accept-Encoding, Available-Dictionary"


def ask(
    app: Any, method: str = "GET", *, old: bytes = OLD, path: str = f"/{NEW_NAME}", **headers: Any
) -> Answered:
    requested = {"Accept_Encoding": BROWSERS, "Available_Dictionary": available(old), **headers}
    return call(app, path, method, **requested)
