"""The names that the packages export, and the modules that their import loads."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest

from wsgifast import MissingExtra
from wsgifast.checks import needs

EXPORTED = {
    "wsgifast": """
        BodyError Compression ConfigurationError MissingExtra StaticFiles WSGIFast WSGIFastError
        __version__ compress_response register_file_wrapper request_timeout
    """,
    "wsgifast.devservers": """
        ThreadingWSGIServer WSGIRequestHandler WSGIServer WerkzeugRequestHandler make_server
    """,
    "wsgifast.devservers.simple_server": """
        ThreadingWSGIServer WSGIRequestHandler WSGIServer make_server
    """,
    "wsgifast.django": """
        StaticFilesMiddleware get_asgi_application get_wsgi_application serve_media
    """,
    "wsgifast.files": """
        ByteRange Header Plan Representation RequestFacts content_etag describe http_date
        parse_http_date stat_etag
    """,
    "wsgifast.mail": "IMAP4 IMAP4_SSL SMTP SMTP_SSL",
    "wsgifast.metrics": """
        Answered CATALOGUE Collector Distribution Metric Point Recorder RequestMetrics
    """,
    "wsgifast.sockets": """
        AsyncCoalescingWriter ClosedEarly CoalescingWriter FileSegment FileTruncated
        IncompleteReceive ReceiveCount ReceiveTimedOut SendFailed SharedCoalescingWriter
        SocketInUse SocketNotFound WriterClosed async_recv_exactly async_recv_exactly_into
        file_segment limit_send_buffer owned_socket recv_exactly recv_exactly_into
        release_send_buffer send_all send_file_segment send_some set_nodelay
    """,
    "wsgifast.workers": "FastWorker JSONLogger UnsupportedGunicorn",
}


@pytest.mark.parametrize("package", EXPORTED)
def test_package_exports_its_names(package: str) -> None:
    module = importlib.import_module(package)
    assert sorted(module.__all__) == EXPORTED[package].split()
    assert all(hasattr(module, name) for name in module.__all__)


# Modules that take 10 to 40 ms to load, and that no page needs.
SLOW = {"asyncio", "email", "ssl"}


@pytest.mark.parametrize(
    ("statement", "spared"),
    [
        ("import wsgifast", {*SLOW, "inspect", "logging", "wsgifast.middleware"}),
        ("import asgifast", {*SLOW, "inspect", "logging", "wsgifast.middleware"}),
        ("from wsgifast import *", SLOW),
        ("from asgifast import ASGIFast, StaticFiles", {"email", "starlette"}),
        ("import wsgifast.sockets", {*SLOW, "wsgifast.middleware"}),
        ("import wsgifast.files", {*SLOW, "wsgifast.middleware"}),
        ("import wsgifast.mail", {"aiosmtpd", "django"}),
    ],
)
def test_import_loads_no_package_it_does_not_need(statement: str, spared: set[str]) -> None:
    # If coverage.py measures, it has loaded modules before the statement runs.
    code = f"import sys; before = {{*sys.modules}}; {statement}; "
    code += f"print(*((sys.modules.keys() - before) & {spared}))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


def test_extras_are_those_that_pip_knows() -> None:
    """Extras that an ImportError tells users to install are in pyproject.toml."""
    extras = {
        "gunicorn": ["gunicorn"],
        "fast": ["gunicorn", "httptools"],
        "devservers": ["werkzeug"],
        "mail": ["aiosmtpd"],
        "django": ["django"],
        "bench": ["locust", "psutil"],
        "prometheus": ["prometheus-client"],
        "opentelemetry": ["opentelemetry-api"],
        "asgi": ["starlette", "uvicorn", "httptools", "h11"],
    }
    required = requires("wsgifast") or []
    for extra, packages in extras.items():
        for package in packages:
            wanted = re.compile(rf"{package}[^;]*; extra == .{extra}.")
            assert any(map(wanted.fullmatch, required)), (package, extra)
    assert all("extra ==" in requirement for requirement in required)


@pytest.mark.parametrize("package", ["wsgifast", "asgifast", "loadtests"])
def test_every_module_can_be_imported(package: str) -> None:
    folder = Path(str(importlib.import_module(package).__file__)).parent
    modules = [package]
    for path in sorted(folder.rglob("*.py")):
        # Locust patches the process that imports it. Django needs its settings first.
        if (
            path.stem in ("__init__", "__main__")
            or "django" in path.relative_to(folder).with_suffix("").parts
            or "import locust" in (text := path.read_text())
            or "from locust" in text
            or ("import zttp" in text and importlib.util.find_spec("zttp") is None)  # from 3.11 on
        ):
            continue
        modules.append(".".join((package, *path.relative_to(folder).with_suffix("").parts)))
    code = f"import {', '.join(modules)}"
    aiosmtpds = "ignore:'typing.ByteString':DeprecationWarning:aiosmtpd.proxy_protocol"
    run = subprocess.run(
        [sys.executable, "-W", "error", "-W", aiosmtpds, "-c", code], capture_output=True, text=True
    )
    # An unclosed file causes only a warning on stderr.
    assert (run.returncode, run.stderr) == (0, "")


def test_import_failing_otherwise_is_reported() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"), needs("a", "gunicorn", "b"):
        importlib.import_module("no_such_module")
    assert issubclass(MissingExtra, ImportError)
    with (
        pytest.raises(MissingExtra, match=r"pip install 'wsgifast\[b\]'"),
        needs("a", "no_such_module", "b"),
    ):
        importlib.import_module("no_such_module.part")


_IMPORT_ALL = """
import asyncio, importlib, pkgutil, sys, warnings
import wsgifast, asgifast

async def main():
    warnings.simplefilter("ignore")
    sys.argv = ["program", "--no-such-option"]
    for package in (wsgifast, asgifast):
        for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if found.name.endswith("__main__"):
                continue
            try:
                importlib.import_module(found.name)
            except (ImportError, RuntimeError, wsgifast.WSGIFastError):
                pass  # an extra that is not installed, or its wrong version
            except Exception as error:
                if type(error).__name__ != "ImproperlyConfigured":  # Django without settings
                    raise

asyncio.run(main())
print("imported")
"""


def test_importing_a_module_never_exits() -> None:
    """The import works with any settings of metrics in the environment, and in an event loop."""
    for metrics in ("nonsense", "127.0.0.1:1"):
        environment = {**os.environ, "WSGIFAST_METRICS": metrics}
        environment.pop("DJANGO_SETTINGS_MODULE", None)  # set by another test
        run = subprocess.run(
            [sys.executable, "-c", _IMPORT_ALL],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (run.returncode, run.stdout) == (0, "imported\n"), run.stderr


def test_module_that_a_package_lacks_is_named(tmp_path: Path) -> None:
    """A newer version without a module is not mistaken for a package that is not installed."""
    (tmp_path / "starlette").mkdir()
    (tmp_path / "starlette/__init__.py").touch()
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from asgifast import FileResponse"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stderr.splitlines()[-1].startswith(
        "ImportError: cannot import name 'responses' from 'starlette'"
    )
