"""Run Django's own tests of the parts that wsgifast.django replaces, on our classes.

    python -m tests.django.own_suites [LABEL ...]

pip downloads the source of the installed Django, with its tests. In a copy of the tests, the
middleware, the storages and the applications are ours. Each failure must have a known reason.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import django

from tests.support.sources import download_tests

LABELS = (
    "asgi", "file_storage", "handlers", "responses", "servers", "staticfiles_tests", "wsgi",
)  # fmt: skip
# Tests that detect an intended difference.
KNOWN = {
    "test_file_response": "a FileResponse has an ETag and Accept-Ranges, too",
    "test_get_wsgi_application": "a page's body is a list, and no HttpResponse",
    "test_intermediate_files": "counts files in a folder; there are compressed siblings",
    "test_streaming": "the last block and the end of the body are one message",
}
_APPLICATIONS = {
    "from django.core.asgi import get_asgi_application": (
        "from wsgifast.django import get_asgi_application"
    ),
    "from django.core.wsgi import get_wsgi_application": (
        "from wsgifast.django import get_wsgi_application"
    ),
}
_STATIC_FILES = {
    "django.contrib.staticfiles.storage.ManifestStaticFilesStorage": (
        "wsgifast.django.storage.CompressedManifestStaticFilesStorage"
    ),
    "django.contrib.staticfiles.storage.StaticFilesStorage": (
        "wsgifast.django.storage.CompressedStaticFilesStorage"
    ),
    "ALWAYS_INSTALLED_APPS = [": 'ALWAYS_INSTALLED_APPS = [\n    "wsgifast.django",',
    "ALWAYS_MIDDLEWARE = [": (
        'ALWAYS_MIDDLEWARE = [\n    "wsgifast.django.StaticFilesMiddleware",'
    ),
}
ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        tests = download_tests("django", Path(folder))
        for label in LABELS:
            for file in (tests / label).rglob("*.py"):
                _replace(file, _APPLICATIONS)
        for file in (tests / "runtests.py", *(tests / "staticfiles_tests").rglob("*.py")):
            _replace(file, _STATIC_FILES)
        ran = subprocess.run(
            [
                sys.executable, "runtests.py", "--settings=test_sqlite", "--parallel=1",
                *(sys.argv[1:] or LABELS),
            ],
            cwd=tests,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'asgi'}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip
    failed = set(re.findall(r"^(?:ERROR|FAIL): (\w+)", ran.stdout, re.MULTILINE))
    count = re.search(r"^Ran (\d+) tests", ran.stdout, re.MULTILINE)
    if count is None or failed - set(KNOWN):
        print(ran.stdout)
        return 1
    print(f"Django {django.__version__}: {count[0]}. Different on purpose:")
    print("\n".join(f"  {name}: {KNOWN[name]}" for name in sorted(failed)))
    return 0


def _replace(file: Path, replaced: dict[str, str]) -> None:
    text = file.read_text(encoding="utf-8")
    for theirs, ours in replaced.items():
        text = text.replace(theirs, ours)
    file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
