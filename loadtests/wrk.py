"""wrk, where it is installed: a client in C, for rates that a client in Python cannot take."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess

from wsgifast.benchmark.load import Client, Load, Task
from wsgifast.benchmark.processes import temporary_folder

__all__ = ["wrk"]

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


def wrk(connections: int = 8) -> Client:
    """A client for the runner: keep-alive GETs, for whole seconds, as wrk knows no others."""

    def run(task: Task) -> Load:
        if shutil.which("wrk") is None:
            raise RuntimeError("wrk is not installed: apt-get install wrk (Debian, Ubuntu)")
        seconds = max(1, round(task.seconds))
        scheme = "https" if task.tls else "http"
        url = f"{scheme}://{task.address[0]}:{task.address[1]}{task.path}"
        headers = [part for header in task.headers for part in ("-H", header)]
        with temporary_folder("wrk") as folder:
            script = folder / "report.lua"
            script.write_text(_REPORT)
            command = ["wrk", "-d", f"{seconds}s", "-c", str(connections), "-t", "1"]
            cpu = _children_cpu_s()
            ran = subprocess.run(
                [*command, *headers, "-s", str(script), url],
                capture_output=True, text=True, timeout=seconds + 30,
            )  # fmt: skip
            cpu = _children_cpu_s() - cpu
        if ran.returncode or "{" not in ran.stdout:
            raise RuntimeError(f"wrk failed with status {ran.returncode}: {ran.stdout}{ran.stderr}")
        report = json.loads(ran.stdout.strip().splitlines()[-1])
        kinds = ("connect", "read", "write", "timeout", "status")
        errors = {f"wrk: {kind}": int(report[kind]) for kind in kinds if report[kind]}
        good = report["requests"] - report["status"]
        # Without a known payload heads and framing are counted too, as wrk itself does.
        size = report["bytes"] if task.body_bytes is None else good * task.body_bytes
        return Load(
            requests=good,
            failures=sum(errors.values()),
            body_bytes=size,
            seconds=report["us"] / 1e6,
            latency_ms={p: report[f"p{p}"] / 1e3 for p in (50, 95, 99)} if good else {},
            errors=errors,
            client_cpu_s=cpu,
        )

    return run


def _children_cpu_s() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime
