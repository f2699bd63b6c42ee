"""The measurement of the dev servers runs, on every server in it."""

from __future__ import annotations

import subprocess
import sys

from loadtests.nodelay import PEER, SERVERS
from tests.support.servers import ROOT


def test_a_short_run_has_a_figure_for_every_server() -> None:
    options = ["--rounds", "1", "--seconds", "0.02", "--paths", "/small", "--name", "nodelay-test"]
    ran = subprocess.run(
        [sys.executable, "-m", "loadtests.nodelay", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stderr
    rows = [line for line in ran.stdout.splitlines() if line.startswith((*SERVERS, PEER))]
    assert len(rows) == len(SERVERS) + 1, ran.stdout
    assert all(row.split()[-1] == "0" for row in rows), ran.stdout  # none failed
