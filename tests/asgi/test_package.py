"""The names that asgifast exports, and the packages that it imports."""

from __future__ import annotations

import subprocess
import sys

import asgifast
import pytest


def test_exported_names_of_asgifast() -> None:
    assert sorted(asgifast.__all__) == ["ASGIFast", "FileResponse", "StaticFiles"]
    assert all(hasattr(asgifast, name) for name in asgifast.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        getattr(asgifast, "Nothing")  # noqa: B009 - a name that mypy knows to be none


@pytest.mark.parametrize(
    ("absent", "statement", "way_out"),
    [
        ("starlette", "asgifast.FileResponse", "wsgifast[asgi]"),
        ("uvicorn", "from asgifast.uvicorn import H11Protocol", "wsgifast[asgi]"),
        ("httptools", "from asgifast.uvicorn import HttpToolsProtocol", "wsgifast[asgi]"),
        ("httptools", "from asgifast.workers import FastUvicornWorker", "wsgifast[asgi]"),
        ("gunicorn", "from asgifast.workers import FastUvicornWorker", "wsgifast[gunicorn,asgi]"),
        ("zttp", "from asgifast.uvicorn import AutoZttpProtocol", "wsgifast[zttp]"),
    ],
)
def test_missing_package_is_named_with_its_extra(absent: str, statement: str, way_out: str) -> None:
    code = f"import sys; sys.modules[{absent!r}] = None\nimport asgifast\n{statement}"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 1
    assert f"needs {absent}, which is not installed: pip install '{way_out}'" in found.stderr


def test_h11_needs_no_httptools() -> None:
    code = "import sys; sys.modules['httptools'] = None\nfrom asgifast.uvicorn import H11Protocol"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_gunicorns_worker_runs_the_protocol() -> None:
    """The worker prints no warning, unlike uvicorn's own module for gunicorn."""
    code = (
        "from asgifast.uvicorn import HttpToolsProtocol\n"
        "from asgifast.workers import FastUvicornWorker\n"
        "assert FastUvicornWorker.CONFIG_KWARGS['http'] is HttpToolsProtocol\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


CHANGED_CYCLE = """
class Cycle:
    def __init__(self, scope, transport, flow):
        self.scope, self.transport, self.flow = scope, transport, flow
changed.RequestResponseCycle = Cycle
"""
OF_THE_CYCLE = "which has no RequestResponseCycle.body (uvicorn.protocols.http.{}), RequestRes"
OF_H11, OF_HTTPTOOLS = OF_THE_CYCLE.format("h11_impl"), OF_THE_CYCLE.format("httptools_impl")
OF_FLOW = "which has no FlowControl.drain() (uvicorn.protocols.http.h11_impl), FlowControl.pause_"


@pytest.mark.parametrize(
    ("module", "protocol", "change", "reason"),
    [
        ("h11_impl", "H11Protocol", CHANGED_CYCLE, OF_H11),
        ("httptools_impl", "HttpToolsProtocol", CHANGED_CYCLE, OF_HTTPTOOLS),
        ("h11_impl", "H11Protocol", "del changed.RequestResponseCycle", OF_H11),
        ("h11_impl", "H11Protocol", "changed.FlowControl = 'another kind'", OF_FLOW),
        (
            "h11_impl", "H11Protocol", "del changed.H11Protocol.handle_websocket_upgrade",
            "which has no H11Protocol.handle_websocket_upgrade(event) (uvicorn",
        ),
    ],
)  # fmt: skip
def test_uvicorn_built_differently_is_refused(
    module: str, protocol: str, change: str, reason: str
) -> None:
    code = (
        f"from uvicorn.protocols.http import {module} as changed\n{change}\n"
        f"from asgifast.uvicorn import {protocol}"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 1
    assert "asgifast.uvicorn does not fit uvicorn" in found.stderr
    assert reason in found.stderr
