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


@pytest.mark.parametrize(
    ("module", "protocol"), [("h11_impl", "H11Protocol"), ("httptools_impl", "HttpToolsProtocol")]
)
def test_uvicorn_that_is_built_differently_is_refused_at_import(module: str, protocol: str) -> None:
    code = (
        f"from uvicorn.protocols.http import {module} as changed\n"
        "class Cycle:\n"
        "    def __init__(self, scope, transport, flow):\n"
        "        self.scope, self.transport, self.flow = scope, transport, flow\n"
        "changed.RequestResponseCycle = Cycle\n"
        f"from asgifast.uvicorn import {protocol}"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 1
    assert "asgifast.uvicorn does not fit uvicorn" in found.stderr


def test_check_refuses_a_uvicorn_that_is_built_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    from asgifast.uvicorn import protocol as ours_module
    from uvicorn.protocols.http import h11_impl

    def expect(message: str) -> None:
        with pytest.raises(ours_module.UnsupportedUvicorn, match=message):
            ours_module.check(h11_impl, "H11Protocol", {"conn"}, "handle_websocket_upgrade")

    class Cycle:
        def __init__(self, scope: object, conn: object) -> None:
            self.scope, self.conn, self.flow = scope, conn, None

    def fails(self: object, flow: object) -> None:
        raise LookupError("another kind of flow")

    ours_module.check(h11_impl, "H11Protocol", {"conn"}, "handle_websocket_upgrade")
    with monkeypatch.context() as patch:
        patch.delattr(h11_impl.H11Protocol, "handle_websocket_upgrade")
        expect(
            r"does not fit uvicorn .*\(H11Protocol has no handle_websocket_upgrade\); it is tested"
        )
    with monkeypatch.context() as patch:
        patch.setattr("uvicorn.protocols.http.h11_impl.FlowControl.__init__", fails)
        expect("another kind of flow")
    with monkeypatch.context() as patch:
        patch.setattr(h11_impl, "RequestResponseCycle", Cycle)
        expect("Cycle has no body, disconnected, message_event, more_body, on_response, receive, ")
    monkeypatch.delattr(h11_impl, "RequestResponseCycle")
    expect("has no RequestResponseCycle")
