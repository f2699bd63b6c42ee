"""`wsgifast run`: the command of the server that it chooses, with the reasons."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import flask
import h2
import pytest
from cryptography.hazmat.primitives import serialization

from tests.support.servers import ROOT
from tests.support.tls import write_certificate
from wsgifast import WSGIFast
from wsgifast.commands import loading
from wsgifast.commands.arguments import check_certificate
from wsgifast.commands.cli import command_parser, main
from wsgifast.commands.run import ARGUMENTS, wrapped, wrapped_by_environment
from wsgifast.commands.run.command import planned
from wsgifast.commands.run.plan import Plan, check_environment
from wsgifast.commands.run.sizing import Container
from wsgifast.errors import ConfigurationError, MissingExtra
from wsgifast.server.http2 import check_h2

WSGI = "examples.mistakes:raw"
ASGI = "examples.starlette_app"
GRACEFUL, TRUSTED = "--timeout-graceful-shutdown", "--forwarded-allow-ips"
ON_BOTH = pytest.mark.parametrize("app", [WSGI, ASGI])


@pytest.fixture(autouse=True)
def _container(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 3 CPUs and half a gigabyte, and an environment without configuration."""
    for name in ("WEB_CONCURRENCY", "PORT", "FORWARDED_ALLOW_IPS", "GUNICORN_CMD_ARGS"):
        monkeypatch.delenv(name, raising=False)
    found = Container(3.0, "quota", 512 * 2**20)
    monkeypatch.setattr("wsgifast.commands.run.plan.read_container", lambda: found)


def plan(arguments: str) -> Plan:
    own, _, rest = arguments.partition(" -- ")
    options = command_parser().parse_args(["run", *own.split()])
    options.rest = rest.split()
    return planned(options)


def values(words: Sequence[str], option: str) -> list[str]:
    """Return the values of an option on a command line."""
    return [word.partition("=")[2] for word in words if word.partition("=")[0] == option]


@pytest.mark.parametrize(
    ("arguments", "environment", "option", "expected"),
    [
        *(
            case
            for app in (WSGI, ASGI)
            for case in (
                (f"{app} --workers=7", {"WEB_CONCURRENCY": "2"}, "--workers", ["7"]),
                (f"{app} -- --workers=5", {"WEB_CONCURRENCY": "2"}, "--workers", ["5"]),
                (app, {"WEB_CONCURRENCY": "2"}, "--workers", []),
                (f"{app} --reload", {}, "--workers", []),
            )
        ),
        # The address is the same on both servers.
        (f"{WSGI} --bind 8123", {}, "--bind", ["127.0.0.1:8123"]),
        (f"{WSGI} --bind :8123", {}, "--bind", ["127.0.0.1:8123"]),
        (f"{WSGI} --bind 127.0.0.1:8123", {}, "--bind", ["127.0.0.1:8123"]),
        (f"{WSGI} --bind [::1]:8123", {}, "--bind", ["[::1]:8123"]),
        (f"{WSGI} --bind unix:app.sock", {}, "--bind", ["unix:app.sock"]),
        (WSGI, {"PORT": "5007"}, "--bind", ["0.0.0.0:5007"]),
        (ASGI, {"PORT": "5007"}, "--host", ["0.0.0.0"]),
        (ASGI, {"PORT": "5007"}, "--port", ["5007"]),
        (f"{WSGI} --bind=127.0.0.1:9", {"PORT": "5007"}, "--bind", ["127.0.0.1:9"]),
        # A Unix socket has permissions.
        (f"{ASGI} --bind=unix:app.sock", {}, TRUSTED, ["*"]),
        (ASGI, {}, TRUSTED, []),
        (f"{ASGI} --bind=unix:app.sock", {"FORWARDED_ALLOW_IPS": "10.0.0.1"}, TRUSTED, []),
        # The server ends before Kubernetes kills it.
        (ASGI, {}, GRACEFUL, ["20"]),
        (f"{ASGI} -- {GRACEFUL}=7", {}, GRACEFUL, ["7"]),
        (ASGI, {"UVICORN_TIMEOUT_GRACEFUL_SHUTDOWN": "7"}, GRACEFUL, []),
        (f"{ASGI} --reload", {}, GRACEFUL, ["1"]),
        (WSGI, {}, "--graceful-timeout", ["20"]),
        (f"{WSGI} --reload", {}, "--graceful-timeout", ["1"]),
        (f"{WSGI} -- --reload", {}, "--graceful-timeout", ["1"]),
        (f"{ASGI} -- --reload", {}, GRACEFUL, ["1"]),
        (f"{WSGI} -- --graceful-timeout=7", {}, "--graceful-timeout", ["7"]),
        (WSGI, {"GUNICORN_CMD_ARGS": "--graceful-timeout=7"}, "--graceful-timeout", []),
        # Idle connections stay longer than the proxy's, where they occupy no thread.
        (WSGI, {}, "--keep-alive", ["75"]),
        (f"{WSGI} -- --keep-alive=5", {}, "--keep-alive", ["5"]),
        (f"{WSGI} -- -k gthread", {}, "--keep-alive", []),
        (ASGI, {}, "--timeout-keep-alive", ["75"]),
        (f"{ASGI} -- --timeout-keep-alive=9", {}, "--timeout-keep-alive", ["9"]),
        # The log is JSON if it is not written to a terminal.
        (WSGI, {}, "--logger-class", ["wsgifast.workers.JSONLogger"]),
        (f"{WSGI} --access-log=off", {}, "--logger-class", []),
        (f"{WSGI} --access-log=text", {}, "--logger-class", []),
        (f"{WSGI} -- --access-logfile=own.log", {}, "--logger-class", []),
        (f"{WSGI} --certfile {{pem}}", {}, "--http-protocols", ["h2,h1"]),
        (f"{WSGI} --certfile {{pem}} -- --http-protocols=h1", {}, "--http-protocols", ["h1"]),
    ],
)
def test_server_option_has_default_unless_configured(
    arguments: str, environment: Mapping[str, str], option: str, expected: list[str],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if "{pem}" in arguments:
        arguments = arguments.format(pem=write_certificate(tmp_path / "server.pem"))
    assert values(plan(arguments).command, option) == expected


def test_configuration_that_is_no_file_is_passed_on() -> None:
    assert values(plan(f"{WSGI} --config {os.devnull}").command, "--config") == [os.devnull]


def test_access_log_on_a_terminal_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    command = plan(WSGI).command
    assert (values(command, "--logger-class"), values(command, "--access-logfile")) == ([], ["-"])
    assert "json_log" not in plan(ASGI).environment[ARGUMENTS]


@ON_BOTH
def test_client_limits_are_the_same_on_both_servers(app: str) -> None:
    limits = plan(f"{app} --body-limit-bytes 1000 --body-timeout-s 5.5").environment
    assert limits.items() >= {
        ("WSGIFAST_BODY_LIMIT_BYTES", "1000"),
        ("WSGIFAST_BODY_TIMEOUT_S", "5.5"),
    }
    assert "WSGIFAST_HEAD_TIMEOUT_S" not in limits


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--body-timeout-s 0", "argument --body-timeout-s: '0': expected seconds above 0"),
        ("--workers x", "--workers: 'x': expected a whole number of at least 1, or auto"),
        ("--workers 0", "--workers: '0': expected a whole number of at least 1, or auto"),
    ],
)
def test_run_option_of_impossible_value_names_others(
    option: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        plan(f"{ASGI} {option}")
    assert said in capsys.readouterr().err


def test_port_of_environment_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "http")
    with pytest.raises(ConfigurationError, match="PORT='http'"):
        plan(WSGI)


def test_asgi_app_without_a_body_limit_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    note = "request bodies have no limit (--body-limit-bytes)"
    assert note in plan(ASGI).notes
    assert note not in plan(f"{ASGI} --body-limit-bytes 1000").notes
    monkeypatch.setenv("WSGIFAST_BODY_LIMIT_BYTES", "1000")
    assert note not in plan(ASGI).notes


@ON_BOTH
@pytest.mark.parametrize("option", ["", " --workers=auto"])
def test_workers_auto_is_the_default_and_has_a_reason(app: str, option: str) -> None:
    found = plan(app + option)
    (given,) = values(found.command, "--workers")
    assert 1 <= int(given) <= 3
    assert found.notes[0].startswith(f"{given} worker")
    assert "3 CPUs of the quota" in found.notes[0]


def test_metrics_without_prometheus_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "wsgifast.commands.run.command.importlib.util.find_spec",
        lambda name: None if name == "prometheus_client" else object(),
    )
    with pytest.raises(MissingExtra, match=r"wsgifast\[prometheus\]"):
        plan(f"{ASGI} --metrics=127.0.0.1:9100")


def test_app_waiting_for_servers_has_more_threads(tmp_path: Path) -> None:
    (tmp_path / "redis.py").write_text("")
    (tmp_path / "shop.py").write_text(
        f"import sys\nsys.path[:0] = [{str(tmp_path)!r}]\nimport redis\n"
        "def app(environ, start_response): ...\n"
    )
    found = plan(str(tmp_path / "shop.py"))
    assert values(found.command, "--threads") == ["12"]
    assert "12 threads: the app waits for redis" in found.notes


@pytest.mark.parametrize(
    ("more", "option", "beside"),
    [
        ("", "", True),
        ("", " --no-static", False),
        ("@app.before_request\ndef guard():\n    flask.abort(403)\n", "", False),
    ],
)
def test_static_folder_of_flask_is_served_if_unguarded(
    more: str, option: str, beside: bool, tmp_path: Path
) -> None:
    (tmp_path / "static").mkdir()
    (tmp_path / "plain.py").write_text(f"import flask\napp = flask.Flask(__name__)\n{more}")
    found = plan(f"{tmp_path / 'plain.py'}{option}")
    static = str(tmp_path / "static")
    assert (f'static={{"/static/": "{static}"}}' in found.command[-1]) is beside
    assert any(f"/static/ from {static}" in note for note in found.notes) is beside


@pytest.mark.parametrize(
    ("pattern", "prefix", "beside"),
    [
        (None, "files/", True),
        ("^files/(.*)$", "/files/", False),  # the app's middleware adds headers to them
        ("^(.*)$", "/files/", True),
        ("^static/", "/files/", True),
    ],
)
def test_static_root_is_served_unless_a_url_has_it(
    pattern: str | None, prefix: str, beside: bool, tmp_path: Path
) -> None:
    (tmp_path / "collected").mkdir()
    (tmp_path / "shopsettings.py").write_text(
        "SECRET_KEY = 'a'\nROOT_URLCONF = 'shopurls'\n"
        f"INSTALLED_APPS = ['django.contrib.staticfiles']\nSTATIC_URL = {prefix!r}\n"
        f"STATIC_ROOT = {str(tmp_path / 'collected')!r}\n"
    )
    urls = "" if pattern is None else f"re_path({pattern!r}, print)"
    (tmp_path / "shopurls.py").write_text(
        f"from django.urls import re_path\nurlpatterns = [{urls}]\n"
    )
    found = plan(str(tmp_path / "shopsettings.py"))
    static = f'static={{"/files/": "{tmp_path / "collected"}"}}'
    assert (static in found.command[-1]) is beside
    assert found.decided.startswith("Django with the settings shopsettings is a WSGI app: gunicorn")


CLASS = """\
from wsgifast.workers import FastWorker


class Own(FastWorker):
    pass


print("no JSON")
worker_class = Own
"""


@pytest.mark.parametrize(
    ("arguments", "configuration", "environment", "command", "decided"),
    [
        ("", "", "", "-k F -t 4 -b D", "FastWorker, 4 threads"),
        ("", "threads = 1", "", "-k F -b D --config", "FastWorker, 1 thread"),
        ("--threads 2", "threads = 1", "", "-k F -b D -t 2 --config", "FastWorker, 2 threads"),
        ("", "bind = ':9'", "", "-k F -t 4 --config", "FastWorker, 4 threads"),
        ("--bind :7", "bind = ':9'", "", "-k F -t 4 -b E --config", "FastWorker, 4 threads"),
        (" -- -k gthread", "", "", "-t 4 -b D -k gthread", "gthread, 4 threads"),
        (" -- -k gevent -b :9", "", "", "-t 4 -k gevent -b :9", "gevent"),
        (" -- -k sync", "", "", "-b D -k sync", "sync"),
        (" -- -k sync", "threads = 2", "", "-b D --config -k sync", "gthread, 2 threads"),
        ("", "", "--threads=5 -b :9", "-k F", "FastWorker, 5 threads"),
        ("", CLASS, "", "-t 4 -b D --config", "Own"),
        (" -- --version", "", "", "-k F -t 4 -b D --version", "FastWorker, 4 threads"),
    ],
)
def test_gunicorn_configuration_replaces_defaults(
    arguments: str, configuration: str, environment: str, command: str, decided: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    file = tmp_path / "own.py"
    config = ""
    if configuration:
        file.write_text(configuration)
        config = f" --config {file}"
    monkeypatch.setenv("GUNICORN_CMD_ARGS", environment)
    monkeypatch.setenv("WEB_CONCURRENCY", "1")
    found = plan(f"{WSGI}{config} --access-log=off {arguments}")
    shown = " ".join(found.command[1:-1])
    for text, short in (
        ("--no-control-socket ", ""),
        ("--graceful-timeout=20 ", ""),
        ("--keep-alive=75 --worker-class=wsgifast.workers.FastWorker", "-k F"),
        ("--threads=", "-t "),
        ("--bind=127.0.0.1:8000", "-b D"),
        ("--bind=127.0.0.1:7", "-b E"),
        (f"--config={file}", "--config"),
    ):
        shown = shown.replace(text, short)
    assert shown == command
    assert found.decided.endswith(f"is a WSGI app: gunicorn with {decided}")


def test_encrypted_key_is_left_to_the_server(tmp_path: Path) -> None:
    """The key asks for a password."""
    pem = tmp_path / "server.pem"
    write_certificate(pem)
    key = serialization.load_pem_private_key(pem.read_bytes(), None)
    (tmp_path / "encrypted.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    check_certificate(str(pem), str(tmp_path / "encrypted.key"))


def test_wrapped_app_is_not_wrapped_again() -> None:
    app = wrapped("examples.mistakes:app")
    assert isinstance(app, WSGIFast)
    assert not isinstance(app.app, WSGIFast)
    own = flask.Flask("own")
    own.wsgi_app = WSGIFast(own.wsgi_app)  # type: ignore[method-assign]
    assert loading.wrapped(own, "WSGI") is own


def test_app_arguments_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, ARGUMENTS, json.dumps({"target": WSGI}))
    assert callable(wrapped_by_environment())


@pytest.mark.parametrize("words", ["--bind=:9", "-- --bind=:9", "-- --port=9"])
def test_bad_port_that_nobody_uses_is_ignored(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "tcp://10.0.0.1:80")  # Kubernetes sets it for a service "port"
    assert plan(f"{ASGI if 'port' in words else WSGI} {words}").command


@ON_BOTH
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WEB_CONCURRENCY", "abc"),
        ("WEB_CONCURRENCY", "0"),
        ("WEB_CONCURRENCY", "-1"),
        ("WEB_CONCURRENCY", "2.5"),
        ("PORT", "http"),
        ("PORT", "70000"),
        ("LISTEN_FDS", "abc"),
        ("LISTEN_PID", "1.5"),
        ("WSGIFAST_BODY_LIMIT_BYTES", "abc"),
        ("WSGIFAST_METRICS", "abc"),
    ],
)
def test_variable_with_bad_value_precedes_the_app(
    app: str, name: str, value: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv(name, value)
    ends = tmp_path / "ends.py"
    ends.write_text("raise SystemExit('the app was loaded')\n")
    assert main(["run", str(ends)]) == 2
    said = capsys.readouterr().err
    assert f"{name}='{value}'" in said.replace('\\"', '"')


@ON_BOTH
@pytest.mark.parametrize("value", ["", " "])
def test_empty_variable_counts_as_not_set(
    app: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = plan(app)
    for name in ("WEB_CONCURRENCY", "PORT", "LISTEN_FDS", "LISTEN_PID"):
        monkeypatch.setenv(name, value)
    check_environment()
    found = plan(app)
    assert found.command == plain.command
    assert not {"WEB_CONCURRENCY", "PORT"} & os.environ.keys()


@pytest.mark.parametrize(("arguments", "variable"), [(" -- --workers=0", ""), ("", "--workers=0")])
def test_no_worker_at_all_is_refused(
    arguments: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUNICORN_CMD_ARGS", variable)
    with pytest.raises(ConfigurationError, match="workers=0"):
        plan(WSGI + arguments)


@pytest.mark.parametrize(
    ("variable", "named"), [("", ""), ("--workers=3", " and GUNICORN_CMD_ARGS")]
)
def test_asgi_app_ignores_gunicorns_configuration(
    variable: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gunicorn.conf.py").write_text("bind = ':8123'\n")
    (tmp_path / "own.py").write_text("async def app(scope, receive, send): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GUNICORN_CMD_ARGS", variable)
    found = plan("own:app")
    assert "--port=8000" in found.command
    notes = "\n".join(found.notes)
    assert f"gunicorn.conf.py{named}: ignored. own:app is an ASGI app" in notes
    assert "asgifast.workers.FastUvicornWorker" in notes


@pytest.mark.parametrize(
    ("file", "attribute"),
    [("frame_buffer.py", "_data"), ("frame_buffer.py", "_headers_buffer"),
     ("stream.py", "_expected_content_length"), ("connection.py", "_receive_headers_frame")],
)  # fmt: skip
def test_h2_that_does_not_fit_leaves_http1(file: str, attribute: str, tmp_path: Path) -> None:
    """A copy of h2 has another name for an attribute, like another version."""
    shutil.copytree(Path(h2.__file__).parent, tmp_path / "h2")
    path = tmp_path / "h2" / file
    path.write_text(path.read_text().replace(attribute, f"{attribute}_of_old"))
    pem = write_certificate(tmp_path / "server.pem")
    code = (
        "import runpy, sys; sys.path.insert(0, sys.argv.pop(1))\n"
        "from tests.running.test_plan import plan\n"
        "found = plan(sys.argv[1])\nprint(found.command, found.notes)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), f"{WSGI} --certfile {pem} --workers 1"],
        capture_output=True, text=True, cwd=ROOT, timeout=120,
    )  # fmt: skip
    assert "HTTP/1.1 alone. h2 " in ended.stdout, ended.stderr
    assert "--http-protocols" not in ended.stdout


def test_h2_that_fits_is_used() -> None:
    check_h2()


@ON_BOTH
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("x" * 120, "AF_UNIX path too long"),
        ("leads-nowhere", "is not a socket, and is not replaced"),
    ],
)
def test_path_that_no_socket_can_have_is_refused(
    app: str, name: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "leads-nowhere").symlink_to(tmp_path / "nothing")
    assert main(["run", app, f"--bind=unix:{tmp_path / name}"]) == 2
    assert reason in capsys.readouterr().err
