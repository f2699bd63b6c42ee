"""Which modules are compiled, and what these must do without."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import ROOT
from wsgifast.compiling import caused_by, mypyc_attr


def _names() -> list[str]:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    names: list[str] = hook._modules(ROOT)
    return names


NAMES = _names()


def test_which_are_compiled() -> None:
    """Those of FastWorker alone: other servers run apps in sub-interpreters, too, where what mypyc
    compiles does not work."""
    assert {name.split("/")[1] for name in NAMES} == {"bodies", "server", "workers"}
    assert "wsgifast/server/connection.py" in NAMES
    assert "wsgifast/server/open_response.py" not in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_causes_are_told_by_a_function(name: str) -> None:
    """mypyc drops `from` of `raise error from cause`."""
    tree = ast.parse(Path(ROOT, name).read_text())
    raises = [node for node in ast.walk(tree) if isinstance(node, ast.Raise)]
    assert not [node.lineno for node in raises if node.cause is not None]
    handlers = [node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)]
    for node in (each for handler in handlers for each in ast.walk(handler)):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            assert ast.unparse(node.exc.func) == "caused_by", f"{name}:{node.lineno}"


def test_a_cause() -> None:
    cause = KeyError("cause")
    error = caused_by(ValueError("error"), cause)
    assert (error.__cause__, error.__suppress_context__) == (cause, True)
    caused_by(error, None)
    assert (error.__cause__, error.__suppress_context__) == (None, True)


def test_options_of_a_class_are_mypycs_alone() -> None:
    class Plain:
        pass

    decorated: Any = mypyc_attr(allow_interpreted_subclasses=True)(Plain)
    assert decorated is Plain
