"""Configuration in the documentation and the examples, read by its own programs."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.support.programs import APACHE_MODULES, program
from tests.support.servers import free_port

_APACHE = """
ServerRoot {folder}
ServerName localhost
PidFile {folder}/pid
ErrorLog /dev/null
{modules}
{text}
"""
_NGINX = """
error_log stderr;
pid {folder}/pid;
{text}
"""


def check_nginx(text: str, folder: Path) -> None:
    """Check a configuration of nginx: whole, or the content of its `http` or `server` block."""
    if text.startswith("location"):
        text = f"server {{\nlisten 80;\n{text}\n}}"
    if "http {" not in text:
        text = f"events {{}}\nhttp {{ access_log off;\n{text}\n}}"
    text = re.sub(r"listen \d+", f"listen 127.0.0.1:{free_port()}", text)
    text = re.sub(r"server \w+:8000", "server 127.0.0.1:8000", text)  # a service name of compose
    path = folder / "nginx.conf"
    path.write_text(_NGINX.format(folder=folder, text=text))
    _run([program("nginx"), "-t", "-q", "-p", str(folder), "-c", str(path)])


def _check_apache(text: str, folder: Path) -> None:
    apache = program("apache2")
    names = ("mpm_event", "proxy", "proxy_http", "headers", "authz_core")
    modules = "".join(
        f"LoadModule {name}_module {APACHE_MODULES}/mod_{name}.so\n" for name in names
    )
    text = f"Listen 127.0.0.1:{free_port()}\n{text}"
    path = folder / "apache2.conf"
    path.write_text(_APACHE.format(folder=folder, modules=modules, text=text))
    _run([apache, "-t", "-f", str(path)])


def _check_caddy(text: str, folder: Path) -> None:
    path = folder / "Caddyfile"
    path.write_text(text)
    _run([program("caddy"), "validate", "--adapter", "caddyfile", "--config", str(path)], folder)


def check_unit(path: Path, folder: Path) -> None:
    """Check a unit of systemd, with an existing program in place of the one that it starts."""
    for each in path.parent.glob("*.s[eo][rc][vk][ie][ct]*"):
        text = re.sub(r"^(ExecStart=)\S+", r"\1/bin/true", each.read_text(), flags=re.MULTILINE)
        (folder / each.name).write_text(text)
    _run([program("systemd-analyze"), "verify", str(folder / path.name)], folder)


def _run(command: list[str], home: Path | None = None) -> None:
    environment = {**os.environ, **({} if home is None else {"HOME": str(home)})}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


CHECKS: Mapping[str, Callable[[str, Path], None]] = {
    "nginx": check_nginx,
    "apache": _check_apache,
    "caddy": _check_caddy,
}
