"""Forty requests for static files, and the responses of three middlewares.

python -m tests.django.compared        # prints all responses, and the table of the documentation
"""

from __future__ import annotations

import gzip
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import brotli
from django.conf import settings
from django.contrib.staticfiles.storage import staticfiles_storage
from django.core.handlers.wsgi import WSGIHandler
from django.test import override_settings

from tests.support import django_project
from tests.support.wsgi import Server, new_environ

__all__ = ["DATE", "REQUESTS", "as_markdown", "differences", "tree"]

MIDDLEWARE = {
    "ours": "wsgifast.django.StaticFilesMiddleware",
    "WhiteNoise": "whitenoise.middleware.WhiteNoiseMiddleware",
    "ServeStatic": "servestatic.middleware.ServeStaticMiddleware",
}
STYLE = b"body { color: red }\n" * 500
LARGE = bytes(range(256)) * 2000
# The compared parts of two responses with the same status.
_HEADERS = ("Cache-Control", "Content-Encoding", "Content-Type", "Vary", "X-Content-Type-Options")
DATE = "Wed, 21 Oct 2015 07:28:00 GMT"
LATER = "Fri, 21 Oct 2044 07:28:00 GMT"
# Method and path, and other headers. {etag} and {modified} are values of the file's 200.
REQUESTS: list[tuple[str, dict[str, str]]] = [
    ("GET /static/style.css", {}),
    ("GET /static/HASHED.css", {}),
    ("GET /static/large.bin", {}),
    ("GET /static/empty.txt", {}),
    ("GET /static/zwölf.txt", {}),
    ("GET /static/data.json", {}),
    ("GET /static/font.woff2", {}),
    ("GET /static/script.mjs", {}),
    ("GET /static/unknown.xyz", {}),
    ("GET /static/archive.tar.gz", {}),
    ("HEAD /static/style.css", {}),
    ("HEAD /static/large.bin", {}),
    ("HEAD /static/large.bin", {"Range": "bytes=0-9"}),
    ("POST /static/style.css", {}),
    ("OPTIONS /static/style.css", {}),
    ("GET /static/style.css", {"Accept-Encoding": "gzip"}),
    ("GET /static/style.css", {"Accept-Encoding": "br, gzip"}),
    ("GET /static/style.css", {"Accept-Encoding": "gzip;q=0, identity"}),
    ("GET /static/style.css", {"Accept-Encoding": "*"}),
    ("GET /static/style.css.gz", {}),
    ("GET /static/large.bin", {"Range": "bytes=0-9"}),
    ("GET /static/large.bin", {"Range": "bytes=-5"}),
    ("GET /static/large.bin", {"Range": "bytes=511990-"}),
    ("GET /static/large.bin", {"Range": "bytes=512000-"}),
    ("GET /static/large.bin", {"Range": "bytes=0-9,20-29"}),
    ("GET /static/large.bin", {"Range": "bytes=9-0"}),
    ("GET /static/large.bin", {"Range": "lines=0-9"}),
    ("GET /static/large.bin", {"Range": "bytes=0-9", "If-Range": '"other"'}),
    ("GET /static/style.css", {"Range": "bytes=0-9", "Accept-Encoding": "gzip"}),
    ("GET /static/style.css", {"If-None-Match": "{etag}"}),
    ("GET /static/style.css", {"If-None-Match": 'W/"x", {etag}'}),
    ("GET /static/style.css", {"If-None-Match": "*"}),
    ("GET /static/style.css", {"If-Modified-Since": "{modified}"}),
    ("GET /static/style.css", {"If-Modified-Since": LATER}),
    ("GET /static/style.css", {"If-Match": '"other"'}),
    ("GET /static/style.css", {"If-Unmodified-Since": DATE}),
    ("GET /static/nothing.css", {}),
    ("GET /static/folder", {}),
    ("GET /static/../settings.py", {}),
    ("GET /static/.hidden", {}),
    ("GET /static/outside.txt", {}),
    ("GET /robots.txt", {}),
]


@contextmanager
def tree() -> Iterator[Path]:
    """Return settings with a folder of files in STATIC_ROOT. One file has a hash in its name."""
    manifest = {"BACKEND": "django.contrib.staticfiles.storage.ManifestStaticFilesStorage"}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name, "static")
        (root / "folder").mkdir(parents=True)
        Path(name, "root").mkdir()
        Path(name, "root", "robots.txt").write_bytes(b"Disallow:\n")
        Path(name, "outside.txt").write_bytes(b"outside")
        (root / "outside.txt").symlink_to(Path(name, "outside.txt"))
        for file, content in (
            ("style.css", STYLE), ("style.css.gz", gzip.compress(STYLE, 9, mtime=0)),
            ("style.css.br", brotli.compress(STYLE)), ("large.bin", LARGE), ("empty.txt", b""),
            ("zwölf.txt", b"12"), ("data.json", b"{}"), ("font.woff2", b"font"),
            ("script.mjs", b"1"), ("unknown.xyz", b"?"), ("archive.tar.gz", b"packed"),
            (".hidden", b"hidden"), ("folder/a.txt", b"a"),
        ):  # fmt: skip
            (root / file).write_bytes(content)
        with override_settings(
            STATIC_ROOT=root,
            STORAGES={**settings.STORAGES, "staticfiles": manifest},
            WHITENOISE_ROOT=Path(name, "root"),
            SERVESTATIC_ROOT=Path(name, "root"),
            SERVESTATIC_USE_MANIFEST=False,
            SERVESTATIC_USE_STATIC_ROOT=True,
        ):
            paths = {"style.css": (staticfiles_storage, "style.css")}
            for _ in staticfiles_storage.post_process(paths):
                pass
            yield root


def responses(name: str, root: Path) -> dict[str, dict[str, str]]:
    """Return the compared parts of the responses of one of MIDDLEWARE to each of REQUESTS."""
    hashed = next(path.name for path in root.glob("style.*.css"))
    security = "django.middleware.security.SecurityMiddleware"
    with override_settings(MIDDLEWARE=[security, MIDDLEWARE[name]]):
        handler = WSGIHandler()

    def ask(method: str, path: str, headers: dict[str, str]) -> tuple[Server, bytes]:
        path = path.replace("HASHED.css", hashed).encode().decode("latin-1")
        sent = {f"HTTP_{key.upper().replace('-', '_')}": value for key, value in headers.items()}
        server = Server(handler, new_environ(method, path, HTTP_HOST="localhost", **sent))
        return server, server.finish()

    known, _ = ask("GET", "/static/style.css", {})
    validators = {"etag": known.header("ETag"), "modified": known.header("Last-Modified")}
    found = {}
    for line, headers in REQUESTS:
        filled = {key: value.format(**validators) for key, value in headers.items()}
        method, path = line.split(" ", 1)
        server, body = ask(method, path, filled)
        response = {"status": server.start[0][:3]}
        if response["status"] in ("200", "206", "304"):
            response["size"] = str(len(body))
            for key in _HEADERS:
                value = (server.header(key) or "").replace('"', "")
                response[key] = value.partition("; boundary")[0]
        requested = ", ".join(f"{key}: {value}" for key, value in headers.items())
        found[f"{line} {requested}".strip()] = response
    return found


def differences(root: Path) -> dict[str, dict[str, dict[str, str]]]:
    """Return the other middlewares' responses that differ from ours, for each request."""
    ours = responses("ours", root)
    found: dict[str, dict[str, dict[str, str]]] = {}
    for name in ("WhiteNoise", "ServeStatic"):
        for request, theirs in responses(name, root).items():
            same = theirs["status"] == ours[request]["status"]
            differing = {
                key: value
                for key, value in theirs.items()
                if ours[request].get(key) != value and (same or key == "status")
            }
            if differing:
                found.setdefault(request, {})[name] = differing
    return found


def as_markdown(root: Path) -> str:
    """Return the differences as a table."""
    ours = responses("ours", root)
    lines = ["| request | StaticFilesMiddleware | WhiteNoise | ServeStatic |", "|---|---|---|---|"]
    for request, others in differences(root).items():
        names = dict.fromkeys(name for theirs in others.values() for name in theirs)
        cells = [f"`{request}`", _cell({name: ours[request].get(name, "") for name in names})]
        cells += [_cell(others.get(name, {})) for name in ("WhiteNoise", "ServeStatic")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(response: dict[str, str]) -> str:
    shown = {"size": "{} bytes", "Content-Encoding": "{}", "status": "{}"}
    cells = [shown.get(key, "`{}`").format(value) for key, value in response.items() if value]
    return ", ".join(cells) if response else "the same"


def main() -> None:
    """Print all responses, and the table."""
    django_project.set_up()
    warnings.simplefilter("ignore")
    with tree() as root:
        ours, others, table = responses("ours", root), differences(root), as_markdown(root)
    for request, response in ours.items():
        print(f"{request}\n    {' | '.join(filter(None, response.values()))}")
        for name, theirs in others.get(request, {}).items():
            print(f"    {name}: {', '.join(f'{key} {value}' for key, value in theirs.items())}")
    print(f"\n{table}")


if __name__ == "__main__":
    main()
