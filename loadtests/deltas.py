"""Measure how many bytes of a site's new release a browser gets that has the old release.

    python -m loadtests.deltas

The program compares brotli with deltas, which are compressed with the old files as dictionaries
(RFC 9842). It collects the static files of a Django site with plotly.js, Bootstrap and the admin.
Chromium visits the site, through FastWorker. Then the program collects the files of the packages'
next releases into the same STATIC_ROOT. Chromium visits the restarted site again. The program
counts the bytes of static files on the wire, with and without dictionaries. The program needs about
90 s of CPU time, most of it for brotli at level 11.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tests.support.chromium import Fetched, chromium
from tests.support.releases import wheel
from tests.support.servers import free_port, live_server

_ROOT = Path(__file__).resolve().parent.parent
_RELEASES = [
    {"plotly": "6.0.0", "bootstrap-flask": "2.3.0", "django": "5.1"},
    {"plotly": "6.0.1", "bootstrap-flask": "2.3.3", "django": "5.2"},
]
# The folder of each wheel that becomes static files.
_FOLDERS = {
    "plotly": "plotly/package_data/",
    "bootstrap-flask": "flask_bootstrap/static/bootstrap5/",
    "django": "django/contrib/admin/static/",
}
_EXCLUDED = ("bootswatch/", "umd/", "/vendor/")
_PAGE = """{% load static %}<!doctype html><title>A site</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="{% static 'css/bootstrap.min.css' %}">
<link rel="stylesheet" href="{% static 'admin/css/base.css' %}">
<link rel="stylesheet" href="{% static 'admin/css/forms.css' %}">
<script src="{% static 'plotly.min.js' %}"></script>
<script src="{% static 'js/bootstrap.min.js' %}"></script>
<script src="{% static 'admin/js/SelectFilter2.js' %}"></script><p>content</p>"""
_SITE = """
import os
from django.conf import settings
FOLDER = os.environ["DELTAS_SITE"]
settings.configure(
    ALLOWED_HOSTS=["*"], SECRET_KEY="no secret", ROOT_URLCONF=__name__,
    INSTALLED_APPS=["wsgifast.django", "django.contrib.staticfiles"],
    MIDDLEWARE=["wsgifast.django.StaticFilesMiddleware"],
    STATIC_URL="/static/", STATIC_ROOT=FOLDER + "/root", STATICFILES_DIRS=[FOLDER + "/source"],
    STORAGES={"staticfiles": {
        "BACKEND": "wsgifast.django.storage.CompressedManifestStaticFilesStorage"}},
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "DIRS": [FOLDER]}],
    WSGIFAST_STATIC={"dictionaries": True, "codings": ["br"]},
)
from django.shortcuts import render
from django.urls import path
urlpatterns = [path("", lambda request: render(request, "page.html"))]
from wsgifast.django import get_wsgi_application
application = get_wsgi_application()
if __name__ == "__main__":
    from django.core.management import call_command
    call_command("collectstatic", verbosity=0, interactive=False)
"""
_NO_DICTIONARIES = (
    "--disable-features=CompressionDictionaryTransport,CompressionDictionaryTransportBackend"
)


class Site:
    """A Django project in a folder, and its releases."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        (folder / "page.html").write_text(_PAGE)
        (folder / "site_.py").write_text(_SITE)
        self.environment = {
            "DELTAS_SITE": str(folder),
            "PYTHONPATH": f"{folder}:{_ROOT}:{_ROOT}/asgi",
        }

    def release(self, versions: dict[str, str]) -> None:
        """Collect the files of a release. The files of the previous release remain."""
        source = self.folder / "source"
        shutil.rmtree(source, ignore_errors=True)
        for package, version in versions.items():
            with zipfile.ZipFile(wheel(f"{package}=={version}")) as opened:
                for name in opened.namelist():
                    relative = name.removeprefix(_FOLDERS[package])
                    if relative != name and not any(part in name for part in _EXCLUDED):
                        (source / relative).parent.mkdir(parents=True, exist_ok=True)
                        (source / relative).write_bytes(opened.read(name))
        subprocess.run(
            [sys.executable, str(self.folder / "site_.py")],
            env={**os.environ, **self.environment},
            check=True,
        )

    def visit(self, profile: Path, *options: str) -> list[Fetched]:
        """Visit the site in a new browser with a profile. Return the fetched static files."""
        url = f"http://localhost:{self.port}/"
        with chromium(profile, *options) as browser:
            seen = browser.visit(url)
            assert (
                browser.evaluate("typeof Plotly.newPlot + typeof bootstrap.Modal") == 2 * "function"
            )
            # The browser stores dictionaries before it ends.
            return [fetched for name, fetched in seen.items() if "/static/" in name]


def main() -> int:
    argparse.ArgumentParser(prog="python -m loadtests.deltas", description=__doc__).parse_args()
    argv = ["python", "-m", "gunicorn", "-k", "wsgifast.workers.FastWorker", "--threads", "4"]
    sent: dict[str, list[list[Fetched]]] = {"brotli": [], "deltas": []}
    with tempfile.TemporaryDirectory(prefix="wsgifast-deltas-") as name:
        site = Site(Path(name))
        for versions in _RELEASES:
            site.release(versions)
            bind = f"127.0.0.1:{site.port}"
            with live_server(
                [*argv, "--bind", bind, "site_:application"],
                ("127.0.0.1", site.port),
                env=site.environment,
                forked=False,
            ):
                for variant, options in (("brotli", [_NO_DICTIONARIES]), ("deltas", [])):
                    sent[variant].append(site.visit(site.folder / variant, *options))
    print("| file | brotli, bytes | delta, bytes |\n|---|---|---|")
    files_by_variant = [
        {_short(f.url): f for f in sent[variant][1] if f.wire_bytes} for variant in sent
    ]
    for file in sorted(files_by_variant[0]):
        brotli, delta = files_by_variant[0][file], files_by_variant[1][file]
        coding = delta.headers.get("content-encoding")
        note = "" if coding == "dcz" else f" ({coding})"
        print(f"| {file} | {brotli.wire_bytes:,} | {delta.wire_bytes:,}{note} |")
    brotli_bytes, delta_bytes = (
        sum(f.wire_bytes for f in files.values()) for files in files_by_variant
    )
    print(f"| **all** | {brotli_bytes:,} | {delta_bytes:,} |")
    share = delta_bytes / brotli_bytes
    print(f"\nThe returning browser got {share:.1%} of brotli's bytes.")
    return 0 if share < 0.1 else 1


def _short(url: str) -> str:
    """Return a file's name without its hash."""
    stem, _, extension = url.rpartition("/")[2].rpartition(".")
    return f"{stem.rpartition('.')[0]}.{extension}"


if __name__ == "__main__":
    sys.exit(main())
