"""`wsgifast doctor` as users type it: exit statuses, formats, baselines, errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import forkserver
from tests.support.servers import ROOT
from wsgifast.commands.doctor.catalogue import parse_entry
from wsgifast.commands.doctor.formats import JSON_VERSION

pytestmark = pytest.mark.long

APP = "tests.doctor.apps:wsgi_app"


def doctor(*arguments: str) -> subprocess.CompletedProcess[str]:
    return forkserver.run([sys.executable, "-m", "wsgifast", "doctor", *arguments], cwd=ROOT)


def test_option_without_effect_is_refused() -> None:
    ended = doctor("--live", "http://127.0.0.1:9", "--access-log", "log")
    assert ended.stderr == "wsgifast: --access-log has no effect with --live. Name paths instead\n"


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ((APP, "/good"), 0),
        ((APP, "/list"), 1),
        ((APP, "/list", "--fail-level", "wrong"), 0),
        ((APP, "/good-file", "--fail-level", "info"), 1),
        ((APP, "/list", "--silence", "WF001"), 0),
        ((APP, "no-slash"), 2),
        ((APP, "/good#top"), 2),
        ((APP, "--access-log", "pyproject.toml"), 2),
        ((APP, "/good", "--baseline", "{baseline}"), 2),
        ((APP, "/good", "--silence", "WF999"), 2),
        ((APP, "/good", "--timeout", "0"), 2),
        ((APP, "/good", "--cookie", "price=1 €"), 2),
        (("--live", "http://127.0.0.1:9", "/ä"), 2),
        ((APP, "/good", "--baseline", "nowhere"), 2),
        ((), 2),
        (("--explain", "WF999"), 2),
        (("nowhere:app", "/"), 3),
        (("tests.doctor.apps:nothing", "/"), 3),
        (("tests.doctor.apps:file_path()", "/"), 3),
    ],
)
def test_exit_status_depends_on_severity(
    tmp_path: Path, arguments: tuple[str, ...], status: int
) -> None:
    (tmp_path / "baseline").write_text('{"version": 1, "findings": [1]}')
    ended = doctor(*(each.format(baseline=tmp_path / "baseline") for each in arguments))
    assert ended.returncode == status, ended.stderr + ended.stdout
    assert "Traceback" not in ended.stderr
    if status >= 2:
        assert ended.stderr.startswith("wsgifast") or "usage:" in ended.stderr
        assert not ended.stdout


def test_text_report_names_what_was_seen() -> None:
    ended = doctor(APP, "/list", "/str", "/good")
    lines = ended.stdout.splitlines()
    first = [" ".join(line.split()) for line in lines[:8]]
    assert first[:3] == ["endpoint what it returns", "what to do", "CPU time"]
    assert first[3:6] == [
        "WF011 /str a bare str", "WSGIFast(app), or return [body]", "fails as it is"
    ]  # fmt: skip
    assert first[6].startswith("WF001 /list 2,000 chunks, ")
    assert first[7] == "WSGIFast(app), or return [b''.join(parts)]"
    assert lines[-5:] == [
        "3 endpoints: 1 good, 1 slow, 1 wrong.",
        "",
        "Next:",
        "  wsgifast doctor --explain WF011                  what it means",
        "  wsgifast bench tests.doctor.apps:wsgi_app /list  what wsgifast gains",
    ]
    assert "\033" not in ended.stdout


def test_json_report_is_a_baseline(tmp_path: Path) -> None:
    ended = doctor(APP, "/list", "/good", "--format", "json")
    report = json.loads(ended.stdout)
    assert report["version"] == JSON_VERSION
    assert report["findings"][0]["id"] == "WF001"
    assert report["endpoints"][0]["chunks"] == 2_000
    baseline = tmp_path / "baseline.json"
    baseline.write_text(ended.stdout)
    assert doctor(APP, "/list", "--baseline", str(baseline)).returncode == 0
    assert doctor(APP, "/list", "/str", "--baseline", str(baseline)).returncode == 1


def test_github_report_names_findings() -> None:
    ended = doctor(APP, "/str", "/good", "--format", "github")
    assert ended.stdout.startswith("::error title=WF011 a bare str or bytes::/str: a bare str.")


def test_html_page_has_findings_and_charts(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    doctor(APP, "/list", "/str", "--html", str(page))
    text = page.read_text()
    assert "WF001" in text
    assert 'class="good"' in text
    assert "http://" not in text.replace("http://www.w3.org", "")  # no app is loaded


def test_unwritable_page_is_refused_before_any_request(tmp_path: Path) -> None:
    ended = doctor(APP, "/list", "--html", str(tmp_path))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert (
        ended.stderr == f"wsgifast: --html {tmp_path}: cannot write this file. Name another file\n"
    )


def test_well_shaped_django_app_has_no_finding() -> None:
    """The command runs in another process: its settings would stay in this one."""
    ended = doctor("examples.django_app:app", "/", "/download", "--fail-level=slow")
    assert ended.returncode == 0, ended.stdout
    assert "2 endpoints: 2 good." in ended.stdout


def test_explain_shows_a_finding_or_the_list() -> None:
    ended = doctor("--explain", "wf003")
    assert ended.returncode == 0
    assert "StreamingHttpResponse" in ended.stdout
    assert "WF045  slow" in doctor("--explain").stdout


SECTION = """WF900

**a fault** (slow)

This was seen.

This is its cost.

How to fix it:

    WSGI   one way
    Flask  another way

With wsgifast: nothing.
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("How to fix it:\n\n    WSGI   one way\n    Flask  another way\n\n", ""),
        ("cost.\n", "cost.\n\nAnother paragraph.\n"),
        ("another way\n", "another way\n\nAnother paragraph.\n"),
        ("How to fix it:\n\n", ""),
        ("    WSGI   one way\n    Flask  another way", "Do this."),
        ("This is its cost.\n\n", ""),
        ("(slow)", "(grave)"),
        ("With wsgifast: nothing.", "Nothing."),
    ],
)
def test_finding_with_another_paragraph_is_refused(old: str, new: str) -> None:
    section = SECTION.replace(old, new, 1) if old else SECTION
    if old.startswith("How to fix it:\n\n    ") or not old:
        entry = parse_entry(section)
        assert (entry.what, entry.why) == ("This was seen.", "This is its cost.")
        assert dict(entry.fixes) == ({} if old else {"WSGI": "one way", "Flask": "another way"})
        assert entry.wsgifast == "nothing."
    else:
        with pytest.raises(ValueError, match=r"findings\.md, WF900: expected"):
            parse_entry(section)


def test_command_ends_although_a_thread_goes_on(tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(
        "import threading\n"
        "threading.Thread(target=threading.Event().wait).start()\n"
        "def app(environ, start_response):\n"
        "    start_response('200 OK', [('Content-Length', '0')])\n"
        "    return []\n"
    )
    command = [sys.executable, "-m", "wsgifast", "doctor", str(tmp_path / "busy.py"), "/"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "1 endpoint: 1 good.\n"), ended.stderr


def test_output_of_the_app_is_not_in_the_report(tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(
        "import os\n"
        "print('at import')\n"
        "os.system('echo of a process')\n"
        "def app(environ, start_response):\n"
        "    print('at a request')\n"
        "    start_response('200 OK', [('Content-Length', '0')])\n"
        "    return []\n"
    )
    ended = doctor(str(tmp_path / "noisy.py"), "/", "--format", "json")
    assert json.loads(ended.stdout)["findings"] == []
    assert "at a request" in ended.stderr
    assert "of a process" in ended.stderr


@pytest.mark.parametrize(
    ("status", "headers", "way_in"),
    [
        ("400 Invalid host header", [], "--header 'Host: its.name'"),
        ("302 Found", [("Location", "/accounts/login/?next=/")], "--cookie"),
        ("301 Moved", [("Location", "https://localhost/")], "--https"),
        ("404 Not Found", [], "(404): name paths to which the app responds with 200"),
    ],
)
def test_report_without_endpoints_names_the_way_in(
    tmp_path: Path, status: str, headers: list[tuple[str, str]], way_in: str
) -> None:
    (tmp_path / "gate.py").write_text(
        "def app(environ, start_response):\n"
        "    if environ['HTTP_HOST'] == 'shop.example':\n"
        "        start_response('200 OK', [('Content-Length', '0')])\n"
        "    else:\n"
        f"        start_response({status!r}, {headers!r})\n"
        f"        return [{status!r}.encode()]\n"
        "    return []\n"
    )
    for form in ("text", "json", "github"):
        ended = doctor(str(tmp_path / "gate.py"), "/", "/a", "--format", form)
        assert ended.returncode == 2
        assert ended.stderr.startswith("wsgifast: nothing was reached (")
        assert way_in in ended.stderr
    ended = doctor(str(tmp_path / "gate.py"), "/", "--header", "Host: shop.example")
    assert (ended.returncode, ended.stdout) == (0, "1 endpoint: 1 good.\n")


def test_access_log_paths_reach_no_terminal_raw(tmp_path: Path) -> None:
    log = tmp_path / "log"
    line = '1.2.3.4 - - [10/Oct/2026:13:55:36 +0000] "GET /list{} HTTP/1.1" 200 5\n'
    log.write_bytes(line.format("?\x1b]0;pwn\x07\x9b\u202e'").encode() + b'"GET /\xff\x1b 200\n')
    (tmp_path / "many.py").write_text(
        "def app(environ, start_response):\n"
        "    start_response('200 OK', [])\n"
        "    return [b'x'] * 2000\n"
    )
    ended = doctor(str(tmp_path / "many.py"), "--access-log", str(log), "--all")
    assert ended.returncode == 1
    assert "/list?%1B]0;pwn%07%C2%9B%E2%80%AE'" in ended.stdout
    assert (ended.stdout + ended.stderr).replace("\n", "").isprintable()
