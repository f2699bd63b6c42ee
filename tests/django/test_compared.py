"""All requests to which WhiteNoise or ServeStatic respond unlike StaticFilesMiddleware."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.django.compared import DATE, REQUESTS, as_markdown, differences, tree

TEN_YEARS = {"Cache-Control": "max-age=315360000, public, immutable"}


def both(**theirs: str) -> dict[str, dict[str, str]]:
    return {"WhiteNoise": theirs, "ServeStatic": theirs}


# Each request with the other middlewares' responses, and the reason. If the status differs, only
# the status is listed.
DIFFERENCES = {
    "GET /static/HASHED.css": both(**TEN_YEARS),
    "GET /static/archive.tar.gz": both(**{"Content-Type": "application/octet-stream"}),
    # Range applies to GET only (RFC 9110, section 14.2).
    "HEAD /static/large.bin Range: bytes=0-9": both(status="206"),
    # Django's own response, from its CSRF protection, or because no view matches.
    "POST /static/style.css": both(status="405"),
    "OPTIONS /static/style.css": both(status="405"),
    "GET /static/style.css Accept-Encoding: gzip;q=0, identity": {
        "WhiteNoise": {"Content-Encoding": "gzip", "size": "83"}
    },
    "GET /static/style.css.gz": both(status="404"),
    "GET /static/large.bin Range: bytes=0-9,20-29": both(status="200"),
    # The range is ignored: it is malformed (section 14.1.1), or If-Range names another file.
    "GET /static/large.bin Range: bytes=9-0": both(status="416"),
    'GET /static/large.bin Range: bytes=0-9, If-Range: "other"': both(status="206"),
    # Preconditions that WhiteNoise and ServeStatic do not evaluate.
    'GET /static/style.css If-None-Match: W/"x", {etag}': both(status="200"),
    "GET /static/style.css If-None-Match: *": both(status="200"),
    'GET /static/style.css If-Match: "other"': both(status="200"),
    f"GET /static/style.css If-Unmodified-Since: {DATE}": both(status="200"),
    # A hidden file, and a link that leads out of STATIC_ROOT.
    "GET /static/.hidden": both(status="200"),
    "GET /static/outside.txt": {"WhiteNoise": {"status": "200"}},
}


@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must:Warning")
def test_forty_requests_are_answered_as_by_the_others() -> None:
    assert len(REQUESTS) >= 40
    page = Path("docs/moving/from-whitenoise.md").read_text(encoding="utf-8")
    with tree() as root:
        assert differences(root) == DIFFERENCES
        assert as_markdown(root) in page, "python -m tests.django.compared prints the table"
