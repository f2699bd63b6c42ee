"""The names that asgifast exports, and what they need."""

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
    """Without a warning: uvicorn's own module for gunicorn has one."""
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
OF_H11 = "Cycle has no body, conn, disconnected, message_event, more_body, on_response, receive, "
OF_NOTHING = "(RequestResponseCycle has no body, conn, disconnected, flow, "
OF_FLOW = "FlowControl has no _is_writable_event, drain, pause_reading, read_paused, "
OF_HTTPTOOLS = (
    "Cycle has no body, chunked_encoding, disconnected, expected_content_length, message_ev"
)


@pytest.mark.parametrize(
    ("module", "protocol", "change", "reason"),
    [
        ("h11_impl", "H11Protocol", CHANGED_CYCLE, OF_H11),
        ("httptools_impl", "HttpToolsProtocol", CHANGED_CYCLE, OF_HTTPTOOLS),
        ("h11_impl", "H11Protocol", "del changed.RequestResponseCycle", OF_NOTHING),
        ("h11_impl", "H11Protocol", "changed.FlowControl = 'another kind'", OF_FLOW),
        (
            "h11_impl", "H11Protocol", "del changed.H11Protocol.handle_websocket_upgrade",
            "(H11Protocol has no handle_websocket_upgrade); it is tested",
        ),
    ],
)  # fmt: skip
def test_uvicorn_that_is_built_differently_is_refused_at_import(
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
