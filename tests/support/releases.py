"""Sites of real packages. A build puts one release after the other into one directory."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.programs import ProgramMissing

_FOLDER = Path(sys.prefix, "releases")
_PLOTLY = "plotly/package_data/plotly.min.js"
_BOOTSTRAP = "flask_bootstrap/static/bootstrap5/{}/bootstrap.min.{}"
_ADMIN = "django/contrib/admin/static/admin/css/base.css"
_LAB = "jupyterlab/static/jlab_core.{}.js"
# Files that a page loads at each of its releases: wheels, and files in them.
RELEASES = [
    [
        (f"plotly=={plotly}", _PLOTLY),
        (f"bootstrap-flask=={bootstrap}", _BOOTSTRAP.format("css", "css")),
        (f"bootstrap-flask=={bootstrap}", _BOOTSTRAP.format("js", "js")),
        (f"django=={django}", _ADMIN),
        (f"jupyterlab=={lab}", _LAB.format(lab_hash)),
    ]
    for plotly, bootstrap, django, lab, lab_hash in [
        ("6.0.0", "2.3.0", "5.1", "4.4.4", "7930f75c363206fef83d"),
        ("6.0.1", "2.3.3", "5.2", "4.4.5", "39ffbf5b9a750816e020"),
    ]
]


def publish(folder: Path, files: Sequence[tuple[str, str]], url: str) -> str:
    """Write the files of a release with hashed names, beside those of earlier ones.

    :param url: the URL of the folder.
    :returns: a page with all of them.
    :raises ProgramMissing: if a package cannot be had.
    """
    tags = []
    for package, path in files:
        name = hashed_name(package, path)
        (folder / name).write_bytes(packed_file(package, path))
        tags.append(
            f'<script src="{url}{name}"></script>'
            if name.endswith(".js")
            else f'<link rel="stylesheet" href="{url}{name}">'
        )
    return "<!doctype html><title>A site</title>" + "".join(tags) + "<p>content</p>"


def hashed_name(package: str, path: str) -> str:
    """Return the name of a file with a hash of its content, or its own name if that has a hash."""
    name = path.rpartition("/")[2]
    if re.search(r"\.[0-9a-f]{20}\.", name):
        return name
    stem, _, extension = name.rpartition(".")
    return f"{stem}.{hashlib.md5(packed_file(package, path)).hexdigest()[:12]}.{extension}"


def packed_file(package: str, path: str) -> bytes:
    """Read a file of a wheel."""
    with zipfile.ZipFile(wheel(package)) as opened:
        return opened.read(path)


def wheel(package: str) -> Path:
    """Return the wheel of "name==version". pip downloads it once for each environment.

    :raises ProgramMissing: if it cannot be had.
    """
    folder = _FOLDER / package.replace("==", "-")
    if not list(folder.glob("*.whl")):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--only-binary=:all:", package]
        done = subprocess.run(
            [*command, "--dest", str(folder)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise ProgramMissing(f"{package} cannot be fetched by pip: {done.stderr.strip()}")
    [path] = folder.glob("*.whl")
    return path
