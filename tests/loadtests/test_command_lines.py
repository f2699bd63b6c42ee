"""Every load test command has a --help, and rejects unknown arguments."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# All of them run in one process, which imports common modules once, in place of `python -m` for
# each.
_RUN_ALL = """
import contextlib, io, json, runpy, sys
for module in sys.argv[1:]:
    for argument in ("--help", "--no-such-option"):
        out, err = io.StringIO(), io.StringIO()
        sys.argv = [module, argument]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                runpy.run_module(module, run_name="__main__", alter_sys=True)
                status = "no exit"
            except SystemExit as end:
                status = end.code
        print(json.dumps([module, argument, status, out.getvalue(), err.getvalue()]))
"""


def test_loadtest_command_has_help_and_refusals() -> None:
    first_lines = {}
    folders = (ROOT / "loadtests", ROOT / "docs" / "benchmarks")
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        source = path.read_text()
        # A parent process starts Locust's.
        if 'if __name__ == "__main__":' in source and path.parent.name != "harness":
            parts = path.relative_to(ROOT).with_suffix("").parts
            module = ".".join(part for part in parts if part != "__main__")
            first_lines[module] = source.partition("\n")[0].strip('"')
    argv = [sys.executable, "-W", "ignore", "-c", _RUN_ALL, *first_lines]
    environment = {**os.environ, "COLUMNS": "100"}
    run = subprocess.run(
        argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=100
    )
    responses = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(responses) == 2 * len(first_lines) == 20
    for module, argument, status, out, err in responses:
        said = (module, argument, out, err)
        if argument == "--help":
            assert status == 0, said
            assert out.startswith(f"usage: python -m {module} [-h]"), said
            assert first_lines[module] in out, said
            assert err == "", said
        else:
            assert status == 2, said
            assert err.startswith(f"usage: python -m {module} [-h]"), said
            assert out == "", said


def test_list_of_rows_ends_quietly_with_its_reader() -> None:
    command = [sys.executable, "-m", "loadtests", "--list"]
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(command, cwd=ROOT, stdout=write, stderr=subprocess.PIPE, timeout=100)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, b"")
