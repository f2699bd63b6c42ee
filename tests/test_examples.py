"""Every example, live on the gunicorn command that it shows, with every byte compared."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.support.servers import ROOT, live_server

EXAMPLES = ROOT / "examples"
CSV = "".join(f"{row},{row * row}\n" for row in range(20_000)).encode()
PAGE = ("Grüße\n" * 1_000).encode()


def source(example: str) -> bytes:
    return (EXAMPLES / f"{example}.py").read_bytes()


EXPECTED: dict[str, dict[str, bytes]] = {
    "flask_app": {
        "/": "<h1>Grüße</h1>".encode(),
        "/download": source("flask_app"),
        "/table": b"<table>"
        + b"".join(b"<tr><td>%d</td></tr>\n" % row for row in range(20_000))
        + b"</table>",
        "/report.csv": CSV,
    },
    "flask_blueprints": {
        "/polls/": b'<link rel="stylesheet" href="/polls/static/style.css">',
        "/polls/static/style.css": (
            EXAMPLES / "django_project/polls/static/polls/style.css"
        ).read_bytes(),
    },
    "django_app": {
        "/": "<h1>Grüße</h1>".encode(),
        "/download": source("django_app"),
        "/report.csv": CSV,
    },
    "falcon_app": {"/": "Grüße".encode(), "/download": source("falcon_app"), "/report.csv": CSV},
    "bottle_app": {"/": "Grüße".encode(), "/download": source("bottle_app"), "/report.csv": CSV},
    "mistakes": {
        "/bare-text": PAGE,
        "/bare-bytes": PAGE,
        "/letters": PAGE,
        "/file-by-lines": source("mistakes"),
        "/file-by-blocks": source("mistakes"),
        "/text-file": source("mistakes"),
        "/rows": "".join(f"{number}\n" for number in range(1_000)).encode(),
        "/wrong-length": PAGE,
    },
}


def command_in(example: str) -> list[str]:
    """Return the gunicorn command in an example's docstring."""
    found = re.search(r"^gunicorn .*$", source(example).decode(), re.MULTILINE)
    assert found is not None, f"examples/{example}.py shows no gunicorn command"
    return shlex.split(found[0])


@pytest.mark.parametrize("example", EXPECTED)
def test_every_byte_of_an_example(example: str) -> None:
    options = ["--bind", "127.0.0.1:{port}", "--no-control-socket"]
    with live_server(["python", "-m", *command_in(example), *options]) as server:
        for path, expected in EXPECTED[example].items():
            response = server.get(path)
            assert response.status == 200, f"{path}: {response}\n{server.log()}"
            assert response.body == expected, f"{path}: {response}"
            assert server.get(path, method="HEAD").body == b""


def test_no_example_is_left_out() -> None:
    wsgi = {
        path.stem for path in EXAMPLES.glob("*.py") if "gunicorn -k gthread" in path.read_text()
    }
    assert wsgi == set(EXPECTED)
