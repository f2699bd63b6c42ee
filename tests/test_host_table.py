"""The table of host packages: its names, private names, and names of provisional packages."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import subprocess
import sys

import pytest

from tests.support.servers import ROOT
from wsgifast.hosts import HOSTS, Host


@pytest.mark.parametrize("host", HOSTS.values(), ids=list(HOSTS))
def test_installed_host_has_every_name_of_the_table(host: Host) -> None:
    # It is searched for and not imported: Locust has gevent replace the threads of its process.
    if importlib.util.find_spec(host.name) is None:
        pytest.skip(f"{host.name} is not installed: pip install {host.name}")
    code = f"from wsgifast.hosts import HOSTS; print(HOSTS[{host.name!r}].missing())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "[]\n", done.stderr


# A new name needs a reason: it ends the server, or HTTP/2, when its package renames it.
PRIVATE = {"gunicorn": 0, "uvicorn": 3, "h2": 10, "starlette": 0, "django": 2, "locust": 0}


def test_private_names_are_counted() -> None:
    counted = {
        host.name: len({name for _, name, _ in host.names() if name.startswith("_")})
        for host in HOSTS.values()
    }
    counted["gunicorn"] -= 1  # gunicorn.__version__
    assert counted == PRIVATE
    shown = [f"{number} of {host}" for host, number in PRIVATE.items() if number]
    page = (ROOT / "docs/project/compatibility.md").read_text()
    assert f"It has {sum(PRIVATE.values())} private names: {', '.join(shown)}." in page


# httptools calls these methods of a protocol.
CALLBACKS = {"on_body", "on_headers_complete", "on_message_begin", "on_message_complete"}


def test_each_name_of_the_table_is_in_our_code() -> None:
    names = {name for host in HOSTS.values() for _, name, _ in host.names()}
    text = "\n".join(
        path.read_text()
        for folder in ("wsgifast", "asgi/asgifast")
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "hosts.py"
    )
    words = set(re.findall(r"\w+", text))
    assert names - words == CALLBACKS


def test_each_private_name_in_the_code_is_in_the_table() -> None:
    """Names that our own code does not define, in the modules that know a host."""
    known = {name for host in HOSTS.values() for _, name, _ in host.names()}
    trees = [
        ast.parse(path.read_text())
        for folder in ("wsgifast", "asgi/asgifast")
        for path in (ROOT / folder).rglob("*.py")
    ]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    ours = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    ours |= {node.id for node in nodes if isinstance(node, ast.Name)}
    ours |= {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    ours |= {str(node.value) for node in nodes if isinstance(node, ast.Constant)}  # __slots__
    used = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    private = {name for name in used if re.match("_[a-z]", name)}
    assert private - ours - known == OF_OTHERS


# Names of Python and of other packages. Those of named tuples are documented.
OF_OTHERS = {
    "_asdict", "_replace",  # named tuples
    "_actions", "_current_frames", "_exit", "_fmt", "_style",  # argparse, sys, os, logging
    "_accumulate_metrics",  # prometheus_client
    "_connection_pool",  # geventhttpclient
    # aiosmtpd
    "_decode_data", "_handle_hooks", "_reader", "_reset_timeout", "_tls_protocol", "_writer",
}  # fmt: skip


@pytest.mark.parametrize(
    "package",
    ["asgifast.uvicorn", "wsgifast.metrics", "wsgifast.sockets", "wsgifast.mail",
     "wsgifast.mail.server", "wsgifast.mail.django", "wsgifast.devservers"],
)  # fmt: skip
def test_provisional_names_are_documented(package: str) -> None:
    pages = "\n".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    names = importlib.import_module(package).__all__
    assert [name for name in names if not re.search(rf"\b{name}\b", pages)] == []
