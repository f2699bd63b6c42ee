"""Run the own tests of uvicorn, Starlette and gunicorn on our classes.

    python -m tests.peers.own_suites [OPTION OF PYTEST ...]

pip downloads the source of the installed versions. our_classes.py puts our classes in place of
theirs, and marks the tests of differences.toml as failing. A failing test that is not listed
there is an error. A listed test that passes is an error, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.sources import download_tests

# Maps each name in differences.toml to a package and to files of its tests.
SUITES = {
    "uvicorn": ("uvicorn", "protocols/test_http.py"),
    "starlette": ("starlette", "test_responses.py test_staticfiles.py"),
    "starlette-files": ("starlette", "test_responses.py test_staticfiles.py"),
    "gunicorn": ("gunicorn", "test_valid_requests.py test_invalid_requests.py"),
}
ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        tests = {}
        for package in sorted({package for package, _ in SUITES.values()}):
            (Path(folder) / package).mkdir()
            tests[package] = download_tests(package, Path(folder) / package)
        for name, (package, files) in SUITES.items():
            print(f"\n{name}:", flush=True)
            if _run(name, tests[package], files.split()):
                failed.append(name)
    if failed:
        print(f"\nUnknown differences: {', '.join(failed)}")
    return bool(failed)


def _run(name: str, tests: Path, files: list[str]) -> int:
    places = ROOT / "tests" / "peers", ROOT, ROOT / "asgi"
    return subprocess.run(
        [
            *(sys.executable, "-P", "-m", "pytest", "-q", "--tb=short"),
            *("-p", "our_classes", "-p", "no:locust", "--override-ini=addopts=", *sys.argv[1:]),
            *(str(tests / file) for file in files),
        ],
        cwd=tests.parent,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, places)),
            "WSGIFAST_PEER": name,
        },
    ).returncode


if __name__ == "__main__":
    raise SystemExit(main())
