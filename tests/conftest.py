"""Servers of the behaviour suites, and the rule for missing programs."""

from __future__ import annotations

import contextlib
import gc
import importlib
import inspect
import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import IO, Any

import anyio
import pytest
from hypothesis import settings

from tests.support import forkserver
from tests.support.effort import effort
from tests.support.programs import APACHE_MODULES, ProgramMissing, program
from tests.support.servers import ROOT, LiveServer, live_server
from wsgifast.commands.bench import processes

# No test asserts a time, since a busy machine must not fail a test.
settings.register_profile("wsgifast", deadline=None, max_examples=effort(50))
settings.load_profile("wsgifast")

# A shell starts background commands with SIGINT ignored, and all their children inherit that. The
# children of the tests must end by SIGINT.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None]:
    with _skipping_where_a_program_is_missing():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    with _skipping_where_a_program_is_missing():
        return (yield)


LOOPS: dict[str, tuple[str, dict[str, Any]]] = {
    "asyncio": ("asyncio", {"use_uvloop": False}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
    "trio": ("trio", {}),
}


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test on a new event loop: asyncio's, or that of `loop`."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = pyfuncitem.funcargs
    arguments = {name: given[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    async def bounded() -> None:
        with anyio.fail_after(60):
            await pyfuncitem.obj(**arguments)

    backend, options = LOOPS[str(given.get("loop", "asyncio"))]
    anyio.run(bounded, backend=backend, backend_options=options)
    return True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude the tests from garbage collections, since thousands of them live to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    forkserver.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name each test that was run again on the page of GitHub's workflow."""
    page = os.environ.get("GITHUB_STEP_SUMMARY")
    if page is not None and not hasattr(terminalreporter.config, "workerinput"):
        names = {report.nodeid for report in terminalreporter.stats.get("rerun", [])}
        lines = [f"- `{name}`" for name in sorted(names)] or ["None."]
        with open(page, "a", encoding="utf-8") as file:
            file.write("\n".join(["## Tests that were run again", "", *lines, ""]))


@contextlib.contextmanager
def _skipping_where_a_program_is_missing() -> Iterator[None]:
    """Skip a test whose program is missing, with one line of the summary. In CI, fail it."""
    try:
        yield
    except ProgramMissing as missing:
        if missing.fatal and os.environ.get("CI") == "true":
            raise
        pytest.skip(str(missing))


@pytest.fixture
def forked_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the fork server run the servers of benchmarks, except in benchmark/test_parts.py."""
    # That file starts real processes.
    importlib.import_module("wsgifast.commands.bench.comparison")
    monkeypatch.setattr(processes, "started", _started_in_a_fork)


@contextlib.contextmanager
def _started_in_a_fork(
    command: Sequence[str],
    *,
    stop_s: float,
    env: Mapping[str, str],
    stdout: IO[Any],
    **others: object,
) -> Iterator[Popen[bytes] | forkserver.ForkedProcess]:
    command = [word for word in command if word != "-P"]  # the servers that it knows
    process = forkserver.start(command, cwd=Path.cwd(), env=env, output=stdout)
    try:
        yield process
    finally:
        for _ in range(round(stop_s)):
            process.terminate()  # and again, since wsgiref swallows an exception during a request
            with contextlib.suppress(TimeoutExpired):
                process.wait(1.0)
                break
        process.kill()
        process.wait()


# Each WSGI server's command for :func:`live_server`, given an app.
WSGI_SERVERS: dict[str, Callable[[str], list[str]]] = {
    "gunicorn-sync": lambda app: gunicorn("sync", app),
    "gunicorn-gthread": lambda app: gunicorn("gthread", app, "--threads=4"),
    "gunicorn-fastworker": lambda app: gunicorn("wsgifast.workers.FastWorker", app, "--threads=4"),
    "gunicorn-gevent": lambda app: gunicorn("gevent", app),
    "waitress": lambda app: small_server("waitress", app),
    "fast-wsgiref": lambda app: small_server("fast-wsgiref", app),
    "fast-werkzeug": lambda app: small_server("fast-werkzeug", app),
    "wsgiref": lambda app: small_server("wsgiref", app),
    "werkzeug": lambda app: small_server("werkzeug", app),
    "cheroot": lambda app: small_server("cheroot", app),
    "pywsgi": lambda app: small_server("pywsgi", app),
    "uwsgi": lambda app: uwsgi(app),
    "mod_wsgi": lambda app: mod_wsgi(app),
}


def gunicorn(worker: str, app: str, *options: str) -> list[str]:
    return [
        "python", "-m", "gunicorn", "-k", worker, "-b", "127.0.0.1:{port}", "--no-control-socket",
        *options, app,
    ]  # fmt: skip


def small_server(server: str, app: str) -> list[str]:
    return ["python", "-m", "tests.support.serve", server, "{port}", app]


def uwsgi(app: str) -> list[str]:
    """Debian's, with Debian's Python, which takes the packages without compiled parts from ours."""
    command = program("uwsgi_python3")
    packages = _packages_for_debians_python()
    return [
        command, "--http-socket", "127.0.0.1:{port}", "--threads", "4",
        "--pythonpath", str(ROOT), "--pythonpath", packages,
        "--module", app, "--need-app", "--disable-logging",
        # Room for a request's headers, in which a path occurs twice. The default is 4096 bytes.
        "--buffer-size", "32768",
        # It may never end if one of its threads is in the app when TERM arrives.
        "--die-on-term", "--no-threads-wait", "--skip-atexit", "--skip-atexit-teardown",
        "--add-header", "Connection: close",  # it does so without saying it
    ]  # fmt: skip


def mod_wsgi(app: str) -> list[str]:
    """Apache in one process, with Debian's mod_wsgi and the packages as for uWSGI."""
    command, _ = program("apache2"), program("mod_wsgi.so")
    support = ROOT / "tests" / "support"
    environment = {
        "APACHE_PORT": "{port}", "APACHE_MODULES": APACHE_MODULES,
        "APACHE_PYTHONPATH": f"{ROOT}:{_packages_for_debians_python()}",
        "APACHE_SCRIPT": support / "mod_wsgi_script.py", "MOD_WSGI_APP": app,
    }  # fmt: skip
    # Apache refuses to serve as root, so it runs as another user with the same access to files.
    as_nobody: list[str] = []
    if os.geteuid() == 0:
        powers = "-all,+dac_override"
        as_nobody = [
            program("setpriv"), "--reuid=65534", "--regid=65534", "--clear-groups",
            "--bounding-set", powers, "--inh-caps", powers, "--ambient-caps", powers,
        ]  # fmt: skip
    return [
        "env", *(f"{name}={value}" for name, value in environment.items()),
        *as_nobody, command, "-X", "-f", str(support / "mod_wsgi.conf"),
    ]  # fmt: skip


def _packages_for_debians_python() -> str:
    debians = subprocess.run(
        ["/usr/bin/python3", "-c", "import sys; print(*sys.version_info[:2], sep='.')"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if debians != ours:
        pytest.skip(f"Debian's servers have Python {debians}; the packages here are for {ours}")
    return sysconfig.get_path("purelib")


def wsgi_server(
    name: str, app: str, **options: Any
) -> contextlib.AbstractContextManager[LiveServer]:
    """Run an app ("module:name") on one of WSGI_SERVERS. See :func:`live_server`."""
    return live_server(WSGI_SERVERS[name](app), **options)


def servers_with(
    app: str, names: Iterable[str] = tuple(WSGI_SERVERS), *, started_anew: Collection[str] = ()
) -> Any:
    """Return a fixture for a module: an app on each of these servers, one after the other.

    :param started_anew: those that are not forked from a process that has imported everything.
    """

    @pytest.fixture(scope="module", params=[*names])
    def server(request: pytest.FixtureRequest) -> Iterator[LiveServer]:
        forked = request.param not in started_anew
        with wsgi_server(request.param, app, forked=forked) as running:
            yield running

    return server
