"""The command line: rules for all commands."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.process import open_terminal
from wsgifast import ConfigurationError, __version__
from wsgifast.commands import cli, terminal
from wsgifast.commands.arguments import check_writable
from wsgifast.commands.terminal import progress_line


def test_version_option_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"wsgifast {__version__}\n"


def test_command_line_without_command_prints_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main([]) == 2
    err = capsys.readouterr().err
    assert "wsgifast doctor shop.wsgi:application" in err
    for command in ("doctor", "bench", "run", "top", "files", "compress"):
        assert f"\n    {command} " in err


@pytest.mark.parametrize("command", ["doctor", "bench", "run"])
def test_command_without_an_app_shows_how_one_is_named(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([command]) == 2
    err = capsys.readouterr().err
    assert err == f"wsgifast: name an app, as in: wsgifast {command} shop.wsgi:application\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("doctor", "shop:app", "--fromat", "json"), " (did you mean '--format'?)"),
        (("run", "shop:app", "--access-log=off", "--bogus"), "arguments: --bogus"),
        (("files", "site", "--", "--workers", "2"), "arguments: --workers 2"),
        (("compress", "site", "--jobs", "0"), "--jobs: '0': expected a whole number"),
    ],
)
def test_unknown_option_is_refused_with_a_similar_one(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith(f"usage: wsgifast {arguments[0]}")
    assert said in err


def test_path_after_an_option_is_requested(capsys: pytest.CaptureFixture[str]) -> None:
    app = "tests.doctor.apps:wsgi_app"
    assert cli.main(["doctor", app, "/good", "--timeout", "9", "/list", "--silence", "WF001"]) == 0
    assert "2 endpoints: 2 good." in capsys.readouterr().out


def test_progress_line_fits_its_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """stderr is a narrow terminal here, and stdout is none."""
    primary, secondary = open_terminal(columns=40)
    with open(secondary, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        with progress_line() as progress:
            progress(1, 2, "x" * 100)
        shown = os.read(primary, 1000)
    os.close(primary)
    assert len(shown.decode().split("\r\x1b[K")[1]) == 39, shown


def test_progress_in_a_pipe_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for line_s, shown in ((1000.0, ""), (0.0, "1/2 /a\n2/2 /b\\x1b\n")):
        monkeypatch.setattr(terminal, "LINE_S", line_s)
        with progress_line() as progress:
            progress(1, 2, "/a")
            progress(2, 2, "/b\x1b")
        assert capsys.readouterr().err == shown


@pytest.mark.parametrize("command", ["", "doctor", "bench", "run", "top", "files", "compress"])
def test_help_fits_100_columns_and_has_sections(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    with pytest.raises(SystemExit):
        cli.main([*command.split(), "--help"])
    shown = capsys.readouterr().out.splitlines()
    assert max(map(len, shown)) <= 100
    sections = {line for line in shown if re.fullmatch(r"[a-zA-Z ]+:", line)}
    sections -= {"options:", "positional arguments:", "examples:"}
    assert len(shown) <= 24 or len(sections) >= 2


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_command_with_closed_standard_streams_succeeds(closed: str) -> None:
    command = f"{sys.executable} -m wsgifast doctor tests.doctor.apps:wsgi_app /good {closed}"
    ended = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert ended.returncode == 0
    assert ended.stderr == ""
    assert ended.stdout == ("" if ">&-" in closed.split() else "1 endpoint: 1 good.\n")


def test_command_of_ended_reader_has_no_traceback() -> None:
    command = [sys.executable, "-m", "wsgifast", "doctor", "--explain"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 128 + signal.SIGPIPE


def test_command_on_a_full_disk_ends_with_one_sentence() -> None:
    command = [sys.executable, "-m", "wsgifast", "doctor", "--explain"]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (2, "wsgifast: No space left on device\n")


def test_output_file_is_checked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = tmp_path / "file"
    taken.touch()
    check_writable("--html", str(taken))
    check_writable("--html", str(tmp_path / "new"))
    assert [*tmp_path.iterdir()] == [taken]
    for path in (tmp_path, tmp_path / "missing" / "new", taken / "new"):
        with pytest.raises(ConfigurationError, match=f"--html {path}: cannot write this file"):
            check_writable("--html", str(path))
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # like for any user but root
    for path in (taken, tmp_path / "new"):
        with pytest.raises(ConfigurationError, match=f"--html {path}: cannot write this file"):
            check_writable("--html", str(path))


@pytest.mark.parametrize("name", ["", ".", "no/x", "file/x", "no/", "nowhere", "loop", "a" * 300])
def test_dictionary_into_bad_path_is_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("nowhere").symlink_to("no/file")
    Path("loop").symlink_to("loop")
    assert cli.main(["compress", "--train", "http://127.0.0.1:9/", "--output", name]) == 2
    said = capsys.readouterr().err
    assert said == f"wsgifast: --output {name}: cannot write this file. Name another file\n"
