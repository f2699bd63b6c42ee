"""Programs that tests talk to and pip does not bring: which package has each, and `make servers`.

Run as a script, with any Python and without an environment, it installs what is missing.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["PACKAGES", "ProgramMissing", "install_missing", "program"]

# Each program, and the package that has it in Debian and Ubuntu.
PACKAGES = {
    "nginx": "nginx-light",
    "dovecot": "dovecot-imapd",
    "exim4": "exim4-daemon-light",
    "curl": "curl",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "apache2": "apache2-bin",
    "caddy": "caddy",
    "systemd-analyze": "systemd",
}
# invoke-rc.d asks it whether a package may start its service (/usr/share/doc/init-system-helpers).
_POLICY = Path("/usr/sbin/policy-rc.d")
_NO_SERVICE_STARTS = "#!/bin/sh\nexit 101\n"


class ProgramMissing(Exception):
    """A program is not installed; the message says how to install it."""


def program(name: str) -> str:
    """Return the path of one of PACKAGES.

    :raises ProgramMissing: a test is then skipped; see tests/conftest.py.
    """
    path = _find(name)
    if path is None:
        raise ProgramMissing(
            f"{name} is not installed: make servers (apt-get install {PACKAGES[name]})"
        )
    return path


def install_missing() -> int:
    """Install the packages of all programs that are missing, by apt-get; return the exit status."""
    missing = [package for name, package in PACKAGES.items() if _find(name) is None]
    packages = list(dict.fromkeys(missing))
    if importlib.util.find_spec("ensurepip") is None:  # Debian has parted it from Python
        packages.append("python3-venv")
    if not packages:
        print(f"Installed already: {', '.join(PACKAGES)}.")
        return 0
    wanted = " ".join(packages)
    if shutil.which("apt-get") is None:
        print(f"There is no apt-get here. In Debian the packages are: {wanted}", file=sys.stderr)
        return 1
    if os.geteuid() != 0:
        if shutil.which("sudo") is None:
            print(f"Run this as root: apt-get install {wanted}", file=sys.stderr)
            return 1
        print(f"Installing {wanted} (by sudo) ...", flush=True)
        return subprocess.call(["sudo", sys.executable, __file__])
    print(f"Installing {wanted} ...", flush=True)
    return _apt_get_install(packages)


def _apt_get_install(packages: Sequence[str]) -> int:
    # The services themselves stay off: each test starts its own with its own configuration.
    made = not _POLICY.exists()
    if made:
        _POLICY.write_text(_NO_SERVICE_STARTS)
        _POLICY.chmod(0o755)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        for command in (
            ["apt-get", "update", "-qq"],
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages],
        ):
            done = subprocess.run(
                command,
                env=environment,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            if done.returncode:
                print(f"{' '.join(command)} failed:\n{done.stdout}", file=sys.stderr)
                return done.returncode
    finally:
        if made:
            _POLICY.unlink()
    return 0


def _find(name: str) -> str | None:
    # Debian keeps servers where only root's PATH leads.
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


if __name__ == "__main__":
    sys.exit(install_missing())
