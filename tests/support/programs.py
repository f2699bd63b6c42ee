"""The programs that tests use: the package of each, and `make servers`.

As a script, it installs the missing programs from apt-get and Go. It needs any Python and no
environment. `make release` installs the programs from pip.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

# Where Debian and Ubuntu install them.
APACHE_MODULES = Path("/usr/lib/apache2/modules")
# Each program, and its package in Debian and Ubuntu.
PACKAGES = {
    "nginx": "nginx-light",
    "dovecot": "dovecot-imapd",
    "exim4": "exim4-daemon-light",
    "chromium": "chromium",
    "curl": "curl",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "apache2": "apache2-bin",
    "mod_wsgi.so": "libapache2-mod-wsgi-py3",  # for Debian's own Python
    "setpriv": "util-linux",  # starts Apache as another user
    "caddy": "caddy",
    "haproxy": "haproxy",
    "systemd-analyze": "systemd",
    "uwsgi_python3": "uwsgi-plugin-python3",  # for Debian's own Python, with uwsgi-core
    "wrk": "wrk",  # the client of the load tests
    "h2load": "nghttp2-client",  # the same over HTTP/2
    "openssl": "openssl",
    "ip": "iproute2",  # makes links between network namespaces
    "valgrind": "valgrind",  # counts instructions
    "gcc": "gcc",  # builds gunicorn's C parser, with Python's headers
}
# Programs that can replace others. Ubuntu has no package of Chromium. GitHub's machines have
# Chrome.
_OTHER_NAMES = {"chromium": ["google-chrome", "chromium-browser"]}
# Programs that are in no package index, and their modules for `go install`.
MODULES = {
    "actionlint": "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12",
    "h2spec": "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible",
}
# The programs of the dependency group "release".
WHEELS = ("check-jsonschema", "hadolint", "kubernetes-validate", "twine")
# Its requirements have no version for Python 3.15.
_NOT_ON_3_15 = "kubernetes-validate" if sys.version_info >= (3, 15) else None
# Where `go install` puts them.
_GO_BIN = Path.home() / "go" / "bin"
_PYTHON_H = Path(sysconfig.get_path("include"), "Python.h")
_ONLY_PACKAGES = "packages"
# invoke-rc.d asks this script whether a package may start its service
# (/usr/share/doc/init-system-helpers).
_POLICY = Path("/usr/sbin/policy-rc.d")
_NO_SERVICE_STARTS = "#!/bin/sh\nexit 101\n"


class ProgramMissing(Exception):
    """A program is missing. The message says how to install it.

    :ivar fatal: CI has it. A test without it fails there.
    """

    def __init__(self, message: str, *, fatal: bool = True) -> None:
        super().__init__(message)
        self.fatal = fatal


def program(name: str) -> str:
    """Return the path of one of PACKAGES, MODULES or WHEELS.

    :raises ProgramMissing: a test is then skipped. See tests/conftest.py.
    """
    path = _find(name)
    if path is not None:
        return path
    if name in WHEELS:
        raise ProgramMissing(f"{name} is not installed: make release", fatal=name != _NOT_ON_3_15)
    if name in MODULES:
        how = f"go install {MODULES[name]}"
        raise ProgramMissing(f"{name} is not installed: make servers, with Go ({how})", fatal=False)
    raise ProgramMissing(
        f"{name} is not installed: make servers (apt-get install {PACKAGES[name]})"
    )


def check(name: str, *arguments: str | Path) -> None:
    """Run a program that checks files, and require that it finds nothing.

    :raises ProgramMissing: as :func:`program`.
    """
    command = [program(name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{name} {arguments}\n{done.stdout}{done.stderr}"


def install_missing() -> int:
    """Install the packages of all missing programs, by apt-get. Return the exit status."""
    missing = [package for name, package in PACKAGES.items() if _find(name) is None]
    packages = list(dict.fromkeys(missing))
    if importlib.util.find_spec("ensurepip") is None:  # a separate package in Debian
        packages.append("python3-venv")
    if not _PYTHON_H.exists():
        packages.append("python3-dev")
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
        return subprocess.call(["sudo", sys.executable, __file__, _ONLY_PACKAGES])
    print(f"Installing {wanted} ...", flush=True)
    return _apt_get_install(packages)


def make_modules() -> None:
    """Build the missing programs of MODULES, if Go is installed and its proxy has them."""
    missing = [name for name in MODULES if _find(name) is None]
    go = shutil.which("go", path=f"{os.environ.get('PATH', '')}:/usr/local/go/bin")
    if missing and go is None:
        print(f"Without Go there is no {', '.join(missing)}: their tests are skipped.")
        return
    for name in missing:
        print(f"Making {name} (go install {MODULES[name]}) ...", flush=True)
        environment = {**os.environ, "GOBIN": str(_GO_BIN)}
        if subprocess.call([str(go), "install", MODULES[name]], env=environment):
            print(f"{name} cannot be made here: its tests are skipped.")


def _apt_get_install(packages: Sequence[str]) -> int:
    # The services stay off: each test starts its own server with its own configuration.
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
    # Debian installs servers in folders that only root's PATH has. pip installs programs beside
    # this Python.
    folders = (Path(sys.executable).parent, os.environ.get("PATH", ""), "/usr/sbin:/sbin", _GO_BIN)
    if name.endswith(".so"):
        return shutil.which(name, mode=os.F_OK, path=str(APACHE_MODULES))
    path = ":".join(map(str, folders))
    found = (shutil.which(each, path=path) for each in [name, *_OTHER_NAMES.get(name, [])])
    return next(filter(None, found), None)


if __name__ == "__main__":
    if status := install_missing():
        sys.exit(status)
    if _ONLY_PACKAGES not in sys.argv:
        make_modules()
