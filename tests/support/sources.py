"""Downloads the source archives of installed packages, for their own tests."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path


def download_tests(name: str, folder: Path) -> Path:
    """Unpack the tests of an installed package, without the package.

    :param folder: an empty folder.
    :returns: the folder `tests` of the source archive. Its parent has pyproject.toml, too.
    :raises SystemExit: if pip cannot download the archive.
    """
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    wanted = f"{name}=={version(name)}"
    if subprocess.run(
        [*pip, "--no-deps", f"--no-binary={name}", f"--dest={folder}", wanted]
    ).returncode:
        raise SystemExit(
            f"pip could not download the source of {wanted}. Connect this machine to a package "
            "index, name one (PIP_INDEX_URL=...), or name a folder with the source archives "
            "(PIP_NO_INDEX=1 PIP_FIND_LINKS=...)"
        )
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        members = [
            member
            for member in packed.getmembers()
            if member.name.partition("/")[2].partition("/")[0] in ("tests", "pyproject.toml")
        ]
        packed.extractall(folder, members, filter="data")
    (tests,) = folder.glob("*/tests")
    return tests
