"""The names that the packages export, and what importing them brings along."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from wsgifast import MissingExtra

EXPORTED = {
    "wsgifast": """
        BodyError ConfigurationError MissingExtra StaticFiles WSGIFast WSGIFastError __version__
        register_file_wrapper
    """,
    "wsgifast.files": """
        Entry FilePart Header Plan Representation RequestFacts content_etag describe http_date
        parse_http_date plan_entry plan_representation stat_etag
    """,
    "wsgifast.sockets": """
        AsyncCoalescingWriter ClosedEarly CoalescingWriter FileSegment FileTruncated
        IncompleteReceive ReceiveCount ReceiveTimedOut SendFailed SharedCoalescingWriter
        SocketNotFound WriterClosed async_recv_exactly async_recv_exactly_into file_segment
        limit_send_buffer owned_socket recv_exactly recv_exactly_into send_all send_file_segment
        send_some set_nodelay
    """,
    "wsgifast.workers": "FastWorker UnsupportedGunicorn",
}


@pytest.mark.parametrize("package", EXPORTED)
def test_exported_names(package: str) -> None:
    module = importlib.import_module(package)
    assert sorted(module.__all__) == EXPORTED[package].split()
    assert all(hasattr(module, name) for name in module.__all__)


@pytest.mark.parametrize("package", ["wsgifast", "asgifast"])
def test_importing_needs_no_extra(package: str) -> None:
    extras = {"gunicorn", "uvicorn", "starlette", "locust", "aiosmtpd", "gevent", "django"}
    code = f"import sys, {package}; print(*(sys.modules.keys() & {extras}))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


@pytest.mark.parametrize("package", ["wsgifast", "asgifast", "loadtests"])
def test_every_module_can_be_imported(package: str) -> None:
    folder = Path(str(importlib.import_module(package).__file__)).parent
    modules = [package]
    for path in sorted(folder.rglob("*.py")):
        # Locust patches the process that imports it; Django wants its settings first.
        if (
            path.stem in ("__init__", "__main__", "django")
            or "import locust" in (text := path.read_text())
            or "from locust" in text
        ):
            continue
        modules.append(".".join((package, *path.relative_to(folder).with_suffix("").parts)))
    code = f"import {', '.join(modules)}"
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True
    )
    # What is left open at the end only complains.
    assert (run.returncode, run.stderr) == (0, "")


def test_missing_extra_names_the_way_out() -> None:
    error = MissingExtra("FastWorker", "gunicorn", "gunicorn")
    assert "pip install 'wsgifast[gunicorn]'" in str(error)
    assert isinstance(error, ImportError)
