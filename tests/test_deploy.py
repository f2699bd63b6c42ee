"""examples/deploy: its files are read by their programs, and its parts run here."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml

from tests.docs.configurations import check_nginx, check_unit
from tests.support.programs import check
from tests.support.servers import ROOT, free_port, live_server, wait_for

FOLDER = ROOT / "examples" / "deploy"


def test_nginx(tmp_path: Path) -> None:
    check_nginx((FOLDER / "nginx.conf").read_text(), tmp_path)


@pytest.mark.parametrize("name", ["shop.socket", "shop.service"])
def test_systemd(name: str, tmp_path: Path) -> None:
    check_unit(FOLDER / name, tmp_path)


@pytest.mark.parametrize(
    "command",
    [
        "haproxy -c -f haproxy.cfg",
        "promtool check config prometheus.yml",
        "hadolint Dockerfile",
        "hadolint run.Dockerfile",
        "check-jsonschema --builtin-schema vendor.compose-spec compose.yaml",
        "check-jsonschema --builtin-schema vendor.compose-spec run.compose.yaml",
        "kubernetes-validate --strict kubernetes.yaml",
    ],
)
def test_file_is_accepted_by_its_program(command: str) -> None:
    name, *arguments, file = command.split()
    check(name, *arguments, FOLDER / file)


def test_dockerfile_and_procfile_serve_the_shop(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "shop.py", tmp_path)  # without gunicorn's configuration
    last = (FOLDER / "run.Dockerfile").read_text().splitlines()[-1]
    container = json.loads(last.removeprefix("CMD "))
    here = {"/srv/shop/shop.py:app": "shop.py:app"}
    container = [here.get(word, word) for word in container]
    # Only root may be able to read this Python.
    container = [word for word in container if not word.startswith(("--user", "--group"))]
    web = shlex.split((FOLDER / "Procfile").read_text().removeprefix("web: "))
    for words in (container, web):
        port = free_port()
        words = [f"--bind=127.0.0.1:{port}" if "--bind" in word else word for word in words]
        command = ["python", "-m", *words]
        env = {"PORT": str(port), "WEB_CONCURRENCY": "1", "PYTHONPATH": str(ROOT)}
        with live_server(command, ("127.0.0.1", port), cwd=tmp_path, env=env) as server:
            assert server.get("/").body == b"<h1>The shop</h1>", server.log()


def test_files_that_are_named_are_there() -> None:
    dockerfile = (FOLDER / "Dockerfile").read_text()
    copied = " ".join(re.findall(r"^COPY (?!--from)(.*) \./$", dockerfile, re.MULTILINE)).split()
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    mounted = [
        volume.partition(":")[0]
        for service in services.values()
        for volume in service.get("volumes", [])
        if volume.startswith("./")
    ]
    assert copied
    assert mounted
    assert all((FOLDER / name).is_file() for name in (*copied, *mounted))


def test_kubernetes_names_agree() -> None:
    deployment, service, budget = yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text())
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert service["spec"]["selector"] == labels
    assert budget["spec"]["selector"]["matchLabels"] == labels
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    ports = {port["name"] for port in container["ports"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    volumes = {volume["name"] for volume in deployment["spec"]["template"]["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes


def test_visitors_get_pages_exports_and_files() -> None:
    """Run the app with its configuration file, as the container starts it."""
    argv = ["python", "-m", "gunicorn", "--bind", "127.0.0.1:{port}", "--no-control-socket"]
    argv += ["--config", "gunicorn.conf.py", "--workers", "1", "shop:app"]
    with live_server(argv, cwd=FOLDER) as server:
        assert server.get("/").body == b"<h1>The shop</h1>"
        assert server.get("/orders").body.count(b"<p>") == 5_000
        assert server.get("/orders.csv").body.count(b"\n") == 5_000
        part = server.get("/manual.bin", headers=[("Range", "bytes=0-1048575")])
        assert (part.status, len(part.body)) == (206, 2**20)
        upload = server.get("/upload", method="POST", body=b"x" * 100_000)
        assert upload.body == b"100000\n"
        # A line is written after the client has received all.
        for line in (
            r'"GET /orders HTTP/1.1" 200 \d+ joined',
            r'"GET /orders.csv HTTP/1.1" 200 \d+ coalesced',
            r'"GET /manual.bin HTTP/1.1" 206 1048576 file',
        ):
            line_written = re.compile(line).search
            wait_for(lambda: line_written(server.log()), f"the log has {line}")  # noqa: B023
