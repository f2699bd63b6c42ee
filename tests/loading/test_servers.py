"""`wsgifast run` finds the same app as the server's own command, with all options for its place."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.http import get
from tests.support.servers import ROOT, free_port, live_server
from tests.support.tls import write_certificate
from wsgifast.commands import cli
from wsgifast.commands.bench.serving import found_app
from wsgifast.commands.client import unverified_tls
from wsgifast.commands.loading import AppNotLoaded
from wsgifast.commands.loading.servers import _COUNTERPARTS, _with_counterpart, load_for

pytestmark = pytest.mark.long

BIN = Path(sys.executable).parent
# It responds with values that a server may have changed.
_TEXT = """\
import os, sys
HERE = {name!r}
TEXT = os.environ.get("TEXT", "no variable")
BODY = " ".join([HERE, TEXT, os.path.basename(os.getcwd()), *{more}]).encode()
HEADERS = [("Content-Length", str(len(BODY)))]
"""
_WSGI = """
def app(environ, start_response):
    start_response("200 OK", HEADERS)
    return [BODY]
application = app
def create_app(): return app
"""
_ASGI = """
async def app(scope, receive, send):
    if scope["type"] != "http":
        raise RuntimeError
    headers = [(name.lower().encode(), value.encode()) for name, value in HEADERS]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": BODY})
def create_app(): return app
class New:
    async def __call__(self, scope, receive, send): await app(scope, receive, send)
"""


_TEXT_AND_WSGI = _TEXT.format(name="needs", more="[]") + _WSGI


def app_text(name: str, interface: str, more: str = "[]") -> str:
    return _TEXT.format(name=name, more=more) + (_ASGI if interface == "ASGI" else _WSGI)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The same module here and in a subfolder, so that a wrong choice shows, and one in the
    subfolder only.
    """
    for folder, name in (("", "here"), ("src", "below")):
        (tmp_path / folder).mkdir(exist_ok=True)
        for interface in ("WSGI", "ASGI"):
            text = app_text(name, interface)
            (tmp_path / folder / f"{interface.lower()}_app.py").write_text(text)
    for interface in ("WSGI", "ASGI"):
        part = app_text("only below", interface, "[__import__('part').NAME]")
        (tmp_path / "src" / f"{interface.lower()}_below.py").write_text(part)
    (tmp_path / "src" / "part.py").write_text("NAME = 'part'\n")
    (tmp_path / ".env").write_text("TEXT=from .env\n")
    (tmp_path / "own.py").write_text("chdir = 'src'\nraw_env = ['TEXT=from own.py']\n")
    (tmp_path / "src" / "settings.py").write_text("raw_env = ['TEXT=from settings.py']\n")
    (tmp_path / "does.py").write_text("import os\nos.environ['TEXT'] = 'from does.py'\n")
    (tmp_path / "needs_text.py").write_text("import os; os.environ['TEXT']\n" + _TEXT_AND_WSGI)
    for hook, parameters in (("on_starting", "server"), ("post_fork", "server, worker")):
        text = f"import os\ndef {hook}({parameters}): os.environ['TEXT'] = 'from {hook}'\n"
        (tmp_path / f"{hook}.py").write_text(text)
    (tmp_path / "names.py").write_text("wsgi_app = 'wsgi_app:app'\n")
    return tmp_path


def served(command: Sequence[str], place: Path, env: Mapping[str, str]) -> str:
    paths = [*filter(None, [env.get("PYTHONPATH")]), str(ROOT)]
    environment = {**env, "PYTHONPATH": os.pathsep.join(paths)}
    with live_server(command, cwd=place, env=environment, forked=False) as server:
        body = get(server.address).body.decode()
        assert body, server.log()
        return body


def run(place: Path, target: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run `wsgifast run` with arguments that make it end by itself."""
    command = [str(BIN / "wsgifast"), "run", f"--bind=127.0.0.1:{free_port()}", target]
    return subprocess.run(
        [*command, "--", *options],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("server", "target", "options", "env"),
    [
        ("gunicorn", "wsgi_app:app", "", {}),
        ("gunicorn", "wsgi_app", "", {}),
        ("gunicorn", "wsgi_app:create_app()", "", {}),
        ("gunicorn", "wsgi_app:app", "--chdir src", {}),
        ("gunicorn", "wsgi_below:app", "--chdir=src", {}),
        ("gunicorn", "wsgi_below:app", "--pythonpath src", {}),
        ("gunicorn", "wsgi_app:app", "--pythonpath src,.", {}),
        ("gunicorn", "wsgi_app:app", "-e TEXT=given", {"TEXT": "inherited"}),
        ("gunicorn", "wsgi_app:app", "--env TEXT=given --chdir src", {}),
        ("gunicorn", "wsgi_app:app", "-c own.py", {}),
        ("gunicorn", "wsgi_app:app", "-c file:own.py --preload", {}),
        ("gunicorn", "wsgi_app:app", "-c does.py", {}),
        ("gunicorn", "wsgi_below:app", "-c python:settings", {"PYTHONPATH": "src"}),
        ("gunicorn", "wsgi_app:app", "-c names.py", {}),
        ("gunicorn", "needs_text:app", "-c on_starting.py", {}),
        ("gunicorn", "needs_text:app", "-c post_fork.py", {}),
        ("gunicorn", "wsgi_app:app", "", {"GUNICORN_CMD_ARGS": "--chdir src -e TEXT=commanded"}),
        ("uvicorn", "asgi_app:app", "", {}),
        ("uvicorn", "asgi_app:create_app", "", {}),
        ("uvicorn", "asgi_app:create_app", "--factory", {}),
        ("uvicorn", "asgi_app:New", "", {}),
        ("uvicorn", "asgi_app:app", "--interface asgi3", {}),
        ("uvicorn", "wsgi_app:app", "--interface wsgi", {}),
        ("uvicorn", "asgi_app:app", "--app-dir src", {}),
        ("uvicorn", "asgi_below:app", "--app-dir=src --workers 2", {}),
        ("gunicorn", "wsgi_below:app", "--reload --chdir src -e TEXT=given", {}),
        ("uvicorn", "asgi_below:app", "--reload --app-dir src --env-file .env", {}),
        ("uvicorn", "asgi_app:app", "--env-file .env", {}),
        ("uvicorn", "asgi_app:app", "--env-file .env", {"TEXT": "inherited"}),
        ("uvicorn", "asgi_app:app", "", {"UVICORN_ENV_FILE": ".env", "UVICORN_APP_DIR": "src"}),
        ("uvicorn", "asgi_app:create_app", "", {"UVICORN_FACTORY": "1"}),
        ("uvicorn", "asgi_app:app", "", {"GUNICORN_CMD_ARGS": "-e TEXT=not_uvicorns"}),
    ],
)  # fmt: skip
def test_run_serves_like_the_servers_own_command(
    server: str, target: str, options: str, env: dict[str, str], place: Path
) -> None:
    words = options.split()
    at = ["--bind=127.0.0.1:{port}"] if server == "gunicorn" else ["--port={port}"]
    own = served([str(BIN / server), *at, *words, target], place, env)
    ours = [str(BIN / "wsgifast"), "run", "--bind=127.0.0.1:{port}", target, "--", *words]
    assert served(ours, place, env) == own


@pytest.mark.parametrize(
    ("options", "env", "files"),
    [
        ("--config names.py", {}, {}),
        ("", {}, {"gunicorn.conf.py": "wsgi_app = 'wsgi_app:app'"}),
        ("", {"UVICORN_APP": "asgi_app:app"}, {}),
    ],
)
def test_app_named_by_configuration_is_served(
    options: str, env: dict[str, str], files: dict[str, str], place: Path
) -> None:
    for name, text in files.items():
        (place / name).write_text(text)
    ours = [str(BIN / "wsgifast"), "run", "--bind=127.0.0.1:{port}", *options.split()]
    assert served(ours, place, env).startswith("here no variable")


@pytest.mark.parametrize("server", ["gunicorn", "uvicorn"])
def test_app_changing_directory_keeps_relative_paths(server: str, place: Path) -> None:
    interface = {"gunicorn": "WSGI", "uvicorn": "ASGI"}[server]
    app = place / "moves.py"
    app.write_text("import os\nos.chdir('src')\n" + app_text("moved", interface))
    (place / "files").mkdir()
    (place / "files" / "a.txt").write_text("a file")
    write_certificate(place / "server.pem")
    port = free_port()
    command = [
        str(BIN / "wsgifast"), "run", f"--bind=127.0.0.1:{port}", "moves.py",
        "--static=/files/=files", "--certfile=server.pem", "--keyfile=server.pem", "--workers=2",
    ]  # fmt: skip
    if server == "gunicorn":
        (place / "own.py").write_text("raw_env = ['TEXT=from own.py']\n")
        command += ["--config=own.py"]
    context = unverified_tls()
    with live_server(
        command, ("127.0.0.1", port), cwd=place, env={"PYTHONPATH": str(ROOT)}, forked=False
    ) as running:
        text = "from own.py" if server == "gunicorn" else "no variable"
        assert get(running.address, tls=context).body.decode() == f"moved {text} src"
        assert get(running.address, "/files/a.txt", tls=context).body == b"a file"


@pytest.mark.parametrize(
    ("target", "options", "said"),
    [
        ("wsgi_app:app", "--app-dir src", "gunicorn, which serves WSGI apps like wsgi_app:app: "),
        ("wsgi_app:app", "--env-file .env", "unrecognized arguments: --env-file"),
        ("asgi_app:app", "--chdir src", "uvicorn, which serves ASGI apps like asgi_app:app: "),
        ("asgi_app:app", "--pythonpath=src", "like asgi_app:app: No such option"),
        ("asgi_app:app", "-k gthread", "No such option"),
        ("asgi_app:app", "-b :80", "; uvicorn has --host or --port or --uds for it"),
        ("asgi_app:app", "--max-requests 9", "; uvicorn has --limit-max-requests for it"),
        ("asgi_app:app", "--chdir=src", "No such option '--chdir'; uvicorn has --app-dir for it"),
        ("asgi_app:app", "--graceful-timeout 9", "; uvicorn has --timeout-graceful-shutdown for"),
        ("wsgi_app:app", "--uds a.sock", "unrecognized arguments: --uds; gunicorn has --bind for"),
        ("wsgi_app:app", "--app-dir src", "; gunicorn has --chdir or --pythonpath for it"),
        ("wsgi_app:app", "--no-access-log", "; gunicorn has --access-logfile for it"),
        ("asgi_app:app", "--interface wsgi", "--interface wsgi: asgi_app:app is an ASGI app"),
        ("asgi_app:app", "--interface asgi2", "--interface asgi2: asgi_app:app is an ASGI app"),
        ("wsgi_app:app", "other:app", "other:app names another app than wsgi_app:app"),
        ("wsgi_app:app", "--paste app.ini", "/app.ini names another app than wsgi_app:app"),
        ("wsgi_below:app", "--chdir src --nope", "--nope"),
        ("nowhere:app", "--chdir src", "No module named 'nowhere'"),
        ("nowhere:app", "--app-dir src", "No module named 'nowhere'"),
        ("asgi_app:app", "--app-dir nowhere", "No module named 'asgi_app'; run this in the"),
    ],
)
def test_option_that_cannot_count_is_named(
    target: str, options: str, said: str, place: Path
) -> None:
    (place / "app.ini").write_text("[app:main]\npaste.app_factory = wsgi_app:paste\n")
    ended = run(place, target, *options.split())
    assert ended.returncode in (2, 3), ended
    assert said in ended.stderr, ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1, ended.stderr


def test_counterparts_are_options_of_their_servers() -> None:
    from gunicorn.config import Config
    from uvicorn.main import main as uvicorn

    known = {
        "gunicorn": {option for action in Config().parser()._actions
                     for option in action.option_strings},
        "uvicorn": {option for each in uvicorn.params
                    for option in [*each.opts, *each.secondary_opts]},
    }  # fmt: skip
    for gunicorns, uvicorns in _COUNTERPARTS:
        assert known["gunicorn"] >= {*gunicorns}
        assert known["uvicorn"] >= {*uvicorns}


def test_bad_value_of_own_option_has_no_counterpart() -> None:
    refusal = "argument -w/--workers: invalid int value: 'abc'"
    assert _with_counterpart("gunicorn", ["--workers=abc"], refusal) == refusal


def test_env_file_without_python_dotenv_is_an_error(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "missing").mkdir()
    (place / "missing" / "dotenv.py").write_text("raise ImportError('no dotenv')")
    monkeypatch.setenv("PYTHONPATH", str(place / "missing"))
    monkeypatch.chdir(place)
    with pytest.raises(AppNotLoaded, match=r"asgi_app:app: .* no dotenv"):
        load_for("asgi_app:app", rest=["--env-file", ".env"])


def test_server_option_before_the_separator_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["run", "asgi_app:app", "--app-dir", "src"])
    assert (
        "--app-dir src. Write options of the server at the end, after --" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("target", "options", "said"),
    [
        ("asgi_app:app", "--env-file no.env", "'no.env' does not exist"),
        ("wsgi_app:app", "--chdir nowhere", "can't chdir to 'nowhere'"),
        ("wsgi_app:app", "--version", "gunicorn (version"),
    ],
)
def test_server_that_ends_at_once_says_so_itself(
    target: str, options: str, said: str, place: Path
) -> None:
    ended = run(place, target, *options.split())
    assert said in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr


def test_doctor_uses_files_where_it_was_started(place: Path) -> None:
    (place / "moves.py").write_text("import os\nos.chdir('src')\n" + app_text("moved", "WSGI"))
    (place / "access.log").write_text(
        """1.1.1.1 - - [01/Jan/2026:00:00:00 +0000] "GET /from-log HTTP/1.1" 200 5\n"""
    )
    command = [str(BIN / "wsgifast"), "doctor", "moves.py", "--html=report.html"]
    ended = subprocess.run(
        [*command, "/from-args", "--access-log=access.log", "--all"],
        cwd=place, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert ended.returncode == 0, ended
    assert "2 endpoints" in ended.stdout
    assert (place / "report.html").exists()


@pytest.mark.parametrize(
    ("target", "rest", "expected"),
    [
        ("wsgi_below:app", "--chdir src", ("gunicorn", "WSGI")),
        ("asgi_below:app", "--app-dir src", ("uvicorn", "ASGI")),
        ("asgi_app:create_app", "", ("uvicorn", "ASGI")),
    ],
)
def test_bench_finds_an_app_as_its_server_does(
    target: str, rest: str, expected: tuple[str, str], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    server, loaded = found_app(target, rest.split())
    assert (server, loaded.interface) == expected
    with pytest.raises(AppNotLoaded, match=r"--nope"):
        found_app(target, ["--nope"])
