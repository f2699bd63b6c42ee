"""wrk, where it is installed: a client in C, for rates that a client in Python cannot take."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from .folders import temporary_folder
from .load import Load

__all__ = ["drive_with_wrk", "has_wrk"]

# Called once at the end; defining nothing else keeps Lua out of the requests.
_REPORT = """
done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    '\\n{"requests":%d,"bytes":%d,"us":%d,"connect":%d,"read":%d,"write":%d,"timeout":%d,' ..
    '"status":%d,"p50":%f,"p95":%f,"p99":%f}\\n',
    summary.requests, summary.bytes, summary.duration, e.connect, e.read, e.write, e.timeout,
    e.status, latency:percentile(50), latency:percentile(95), latency:percentile(99)))
end
"""


def has_wrk() -> bool:
    """Whether wrk is installed (Debian's package is called wrk)."""
    return shutil.which("wrk") is not None


def drive_with_wrk(
    address: tuple[str, int],
    path: str,
    *,
    seconds: int = 3,
    connections: int = 8,
    threads: int = 1,
    body_bytes: int | None = None,
) -> Load:
    """Keep-alive GETs for some seconds.

    :param body_bytes: the payload of one answer; without it, heads and framing are counted too,
        as wrk itself does.
    :raises RuntimeError: if wrk fails.
    """
    with temporary_folder("wrk") as folder:
        script = Path(folder, "report.lua")
        script.write_text(_REPORT)
        command = ["wrk", "-d", f"{seconds}s", "-c", str(connections), "-t", str(threads)]
        command += ["-s", str(script), f"http://{address[0]}:{address[1]}{path}"]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 30)
    if ran.returncode or "{" not in ran.stdout:
        raise RuntimeError(f"wrk failed with status {ran.returncode}: {ran.stdout}{ran.stderr}")
    report = json.loads(ran.stdout.strip().splitlines()[-1])
    kinds = ("connect", "read", "write", "timeout", "status")
    errors = {f"wrk: {kind}": int(report[kind]) for kind in kinds if report[kind]}
    good = report["requests"] - report["status"]
    return Load(
        requests=good,
        failures=sum(errors.values()),
        body_bytes=report["bytes"] if body_bytes is None else good * body_bytes,
        seconds=report["us"] / 1e6,
        latency_ms={p: report[f"p{p}"] / 1e3 for p in (50, 95, 99)} if good else {},
        errors=errors,
    )
