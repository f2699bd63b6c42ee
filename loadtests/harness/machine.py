"""Describe the machine on which the load tests run."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Any

from wsgifast.commands.bench import report

# The kernel's congestion control affects the figures even over loopback, because BBR delays the
# packets of large bodies (docs/explanation/sendfile.md).
_CONGESTION_CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")


def machine() -> dict[str, str | int]:
    """Return facts that the figures depend on, such as the processor and the version of Python."""
    facts = report.machine()
    # https://docs.python.org/3/library/sys.html#sys._jit
    jit: Any = getattr(sys, "_jit", None)
    if jit is not None and jit.is_enabled():
        facts["python"] = f"{facts['python']}, JIT"
    facts["processor"] = _processor()
    if control := _congestion_control():
        facts["tcp"] = control
    return facts


def _congestion_control() -> str:
    try:
        return _CONGESTION_CONTROL.read_text().strip()
    except OSError:
        return ""


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
