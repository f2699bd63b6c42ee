"""`wsgifast run --check`: its findings in command lines of gunicorn and uvicorn."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.tls import write_certificate
from wsgifast.commands.cli import main
from wsgifast.commands.doctor.catalogue import CATALOGUE
from wsgifast.commands.loading import ServerName
from wsgifast.commands.loading.servers import Loaded
from wsgifast.commands.run.check import check_deployment, findings
from wsgifast.commands.run.sizing import Container
from wsgifast.errors import ConfigurationError

GOOD: Mapping[str, Any] = {
    "kind": "wsgifast.workers.FastWorker",
    "workers": 2,
    "reload": False,
    "uid": 33,
    "connections": 1000,
    "timeout": 30,
    "keepalive": 75,
    "graceful": 8,
    "addresses": ["0.0.0.0:8000"],
    "forwarded": ["10.0.0.1"],
}
MACHINE: Mapping[str, Any] = {
    "open_files": 65536,
    "is_root": False,
    "temporary": None,
    "has_body_limit": True,
}


def ids(
    changed: Mapping[str, Any],
    machine: Mapping[str, Any] | None = None,
    server: ServerName = "gunicorn",
    **of_app: Any,
) -> list[str]:
    loaded = Loaded(configured={**GOOD, **changed}, **of_app)
    container = Container(2.0, "quota", 2**30)
    found = findings(server, loaded, container, **{**MACHINE, **(machine or {})})
    return [id for id, _ in found]


def test_deployment_as_it_should_be_has_no_finding() -> None:
    assert ids({}) == []
    assert ids({"kind": "asgifast.uvicorn:HttpToolsProtocol"}, server="uvicorn") == []


@pytest.mark.parametrize(
    ("changed", "machine", "expected"),
    [
        ({"kind": "gthread"}, {}, ["WF101"]),
        ({"kind": "gthread"}, {"has_body_limit": False}, ["WF101", "WF102"]),
        ({"kind": "gevent"}, {"has_body_limit": False}, ["WF102"]),
        ({"uid": 0}, {"is_root": True}, ["WF104"]),
        ({"uid": 33}, {"is_root": True}, []),
        ({"reload": True}, {}, ["WF105"]),
        ({}, {"temporary": "/tmp is in memory"}, ["WF106"]),
        ({}, {"open_files": 1024}, ["WF107"]),
        ({}, {"open_files": -1}, []),  # without a limit
        ({"workers": 1}, {}, []),
        ({"workers": 0}, {}, ["WF108"]),
        ({"workers": 6}, {}, ["WF108"]),
        ({"workers": 5}, {}, []),
        ({"timeout": 61}, {}, ["WF109"]),
        ({"timeout": 0}, {}, ["WF109"]),
        ({"keepalive": 2}, {}, ["WF110"]),
        ({"graceful": 30}, {}, ["WF111"]),
        ({"graceful": None}, {}, ["WF111"]),
        ({"forwarded": ["*"]}, {}, ["WF112"]),
        ({"forwarded": ["*"], "addresses": ["unix:/run/shop.sock"]}, {}, ["WF113"]),
        ({"addresses": ["127.0.0.1:8000"]}, {}, []),
        ({"addresses": ["unix:/run/shop.sock"]}, {}, ["WF113"]),
        ({"addresses": ["127.0.0.1:8000"], "certificate": "cert.pem"}, {}, []),
    ],
)
def test_findings_of_a_deployment(
    changed: Mapping[str, Any], machine: Mapping[str, Any], expected: list[str]
) -> None:
    assert ids(changed, machine) == expected
    assert CATALOGUE.keys() >= set(expected)


def test_debugging_is_found() -> None:
    assert ids({}, debug="Django's DEBUG is True") == ["WF103"]


@pytest.mark.parametrize(
    ("address", "expected"), [("0.0.0.0:8000", ["WF114"]), ("unix:/run/shop.sock", ["WF113"])]
)
def test_tls_header_is_found_where_clients_connect(address: str, expected: list[str]) -> None:
    assert ids({"addresses": [address]}, tls_header="HTTP_X_FORWARDED_PROTO") == expected


def test_missing_health_check_and_long_drain_are_found() -> None:
    none = {"health_path": None, "ready_path": None, "drain_delay_s": 0}
    ready = {**none, "ready_path": "/readyz"}
    assert ids(none) == ["WF116"]
    assert ids(none, {"has_metrics": True}) == []
    assert ids({**none, "addresses": ["127.0.0.1:8000"]}) == []
    assert ids(ready) == []
    assert ids({**ready, "graceful": 20, "drain_delay_s": 25}) == ["WF117"]
    assert ids({**ready, "graceful": 20, "drain_delay_s": 20}) == []


def test_replaced_part_of_gunicorn_is_found() -> None:
    assert ids({}, replaced=["gunicorn.http.wsgi.Response"]) == ["WF115"]


def test_command_lines_read_configuration_and_app(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "import flask\napp = flask.Flask(__name__)\napp.debug = True\n"
    )
    conf = tmp_path / "own.py"
    conf.write_text("workers = 9\nforwarded_allow_ips = '*'\nbind = '0.0.0.0:80'\n")
    command = ["gunicorn", "-c", str(conf), "--chdir", str(tmp_path), "-k", "sync", "shop:app"]
    found = {finding.id: finding.what for finding in check_deployment(command, {}).findings}
    assert {"WF101", "WF102", "WF103", "WF108", "WF112"} <= found.keys()
    assert found["WF103"] == "Flask.debug is True"
    assert found["WF108"].startswith("9 for ")
    command = ["python", "-m", "uvicorn", "--workers=9", "examples.starlette_app:app"]
    found = {finding.id: finding.what for finding in check_deployment(command, {}).findings}
    assert {"WF102", "WF108", "WF111"} <= found.keys()
    assert not {"WF101", "WF113"} & found.keys()


@pytest.mark.parametrize("server", ["gunicorn", "uvicorn"])
def test_django_tls_header_and_certificate_are_read(server: str, tmp_path: Path) -> None:
    certificate = write_certificate(tmp_path / "both.pem")
    (tmp_path / "tlsshop.py").write_text(
        "from django.conf import settings\n"
        "from django.core.wsgi import get_wsgi_application\n"
        "settings.configure(SECURE_PROXY_SSL_HEADER=('HTTP_X_FORWARDED_PROTO', 'https'))\n"
        "app = get_wsgi_application()\n"
    )
    place = f"--{'chdir' if server == 'gunicorn' else 'app-dir'}={tmp_path}"
    option, local, everywhere = {
        "gunicorn": ("--certfile", "--bind=127.0.0.1:8443", "--bind=0.0.0.0:443"),
        "uvicorn": ("--ssl-certfile", "--host=127.0.0.1", "--host=0.0.0.0"),
    }[server]
    tls = f"{option}={certificate}"
    found = {}
    for name, words in {"plain": [local], "tls": [local, tls], "public": [everywhere]}.items():
        report = check_deployment([server, place, *words, "tlsshop:app"], {})
        found[name] = {f.id: f.what for f in report.findings if f.id in ("WF113", "WF114")}
    assert set(found["plain"]) == {"WF113"}
    assert found["tls"] == {}
    assert found["public"] == {"WF114": "SECURE_PROXY_SSL_HEADER is HTTP_X_FORWARDED_PROTO"}


def test_command_of_another_server_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"after -- a command of gunicorn or uvicorn"):
        check_deployment(["waitress-serve", "shop:app"], {})
    with pytest.raises(ConfigurationError, match="gunicorn: "):
        check_deployment(["gunicorn", "--no-such-option", "shop:app"], {})


@pytest.mark.parametrize("app", ["examples.mistakes:raw", "examples.starlette_app"])
def test_own_deployment_is_checked_and_not_served(
    app: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["run", "--check", "--json", app])
    report = json.loads(capsys.readouterr().out)
    found = {finding["id"] for finding in report["findings"]}
    assert status == bool({f["severity"] for f in report["findings"]} & {"wrong", "slow"})
    assert not {"WF101", "WF109", "WF110", "WF111"} & found  # the server's own defaults
    assert not {"WF108", "WF113"} & found
    assert main(["run", "--check", app, "--reload"]) == 1
    assert "WF105  wrong  a reloader in production: --reload\n" in capsys.readouterr().out
    unix = ["run", "--check", app, "--bind", "unix:/nowhere/a.sock", "--silence", "WF104"]
    assert main([*unix, "--fail-level", "wrong"]) == 0
    said = capsys.readouterr().out
    assert "WF113" in said
    assert "WF104" not in said
    assert main([*unix, "--fail-level", "info"]) == 1
    assert main([*unix, "--silence", "WF999"]) == 2


@pytest.mark.parametrize("option", ["--fail-level=info", "--silence=WF113", "--json"])
def test_option_of_check_alone_is_refused_without_it(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "examples.mistakes:raw", option]) == 2
    assert "needs --check" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="the finding is for root: run the tests as root")
@pytest.mark.parametrize(
    ("app", "advised"), [("examples.mistakes:raw", True), ("examples.starlette_app", False)]
)
def test_check_advises_options_that_the_server_has(
    app: str, advised: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["run", "--check", app])
    said = capsys.readouterr().out
    assert "WF104" in said
    assert ("--user" in said) is advised


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ["WF116"]),
        ({"WSGIFAST_READY_PATH": "/readyz"}, []),
        ({"WSGIFAST_READY_PATH": "/readyz", "WSGIFAST_DRAIN_DELAY_S": "60"}, ["WF117"]),
    ],
)
def test_asgi_server_has_the_same_findings(
    environment: dict[str, str], expected: list[str]
) -> None:
    protocol = "--http=asgifast.uvicorn:HttpToolsProtocol"
    command = ["uvicorn", protocol, "--host=0.0.0.0", "--timeout-graceful-shutdown=20"]
    report = check_deployment([*command, "examples.starlette_app:app"], environment)
    found = {finding.id for finding in report.findings}
    assert sorted(found & {"WF116", "WF117"}) == expected
