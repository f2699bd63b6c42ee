"""The entries for HttpArena, on the servers of their Dockerfiles, with its validator's requests."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator

import httpx
import pytest

from tests.support.http import Connection
from tests.support.servers import ROOT, live_server

ENTRIES = ROOT / "examples" / "httparena"
PROFILES = {"baseline", "pipelined", "limited-conn", "json", "json-comp", "upload", "static"}
ITEMS = [
    {"id": n, "name": f"Widget {n}", "price": 100 + n, "quantity": n, "tags": ["fast", "new"],
     "active": n % 2 == 0, "rating": {"score": n, "count": 2 * n}}
    for n in range(1, 51)
]  # fmt: skip
SCRIPT = b"const answer = 42;\n" * 500


@pytest.fixture(scope="module", params=["wsgi", "flask", "fastapi"])
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("data")
    (folder / "dataset.json").write_text(json.dumps(ITEMS))
    (folder / "static").mkdir()
    (folder / "static" / "app.js").write_bytes(SCRIPT)
    entry = ENTRIES / request.param
    command = re.search(r'"exec (.*)"\]', (entry / "Dockerfile").read_text())
    assert command is not None
    placed = command[1].replace("0.0.0.0:8080", "127.0.0.1:{port}").replace("$(nproc)", "1")
    placed = placed.replace("--host 0.0.0.0 --port 8080", "--host 127.0.0.1 --port {port}")
    env = {"DATASET_PATH": str(folder / "dataset.json"), "STATIC_PATH": str(folder / "static"),
           "PYTHONPATH": str(entry)}  # fmt: skip
    with (
        live_server(["python", "-m", *placed.split()], env=env) as server,
        httpx.Client(base_url=server.url) as client,
    ):
        yield client


def test_baseline_adds_the_query_and_the_body(client: httpx.Client) -> None:
    url = "/baseline11?a=13&b=42"
    text = {"Content-Type": "text/plain"}
    responses = [
        client.get(url),
        client.post(url, content=b"20", headers=text),
        client.post(url, content=iter([b"2", b"0"]), headers=text),
    ]
    assert [response.text for response in responses] == ["55", "75", "75"]
    assert all(response.headers["Content-Type"].startswith("text/plain") for response in responses)


def test_request_in_fragments_is_answered(client: httpx.Client) -> None:
    port = client.base_url.port
    assert port is not None
    fragments = [b"POST /baseli", b"ne11?a=13&b=42 HTTP/1.1\r\nHost: a\r\nContent-Le",
                 b"ngth: 2\r\nContent-Type: text/plain\r\n\r\n", b"2", b"0"]  # fmt: skip
    with Connection(("127.0.0.1", port)) as connection:
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for fragment in fragments:
            connection.send(fragment)
        assert connection.read_response().body == b"75"


def test_pipeline_answers_ok(client: httpx.Client) -> None:
    response = client.get("/pipeline")
    assert (response.text, response.headers["Content-Type"].partition(";")[0]) == (
        "ok",
        "text/plain",
    )


@pytest.mark.parametrize(("count", "factor"), [(1, 3), (12, 3), (31, 2), (50, 5)])
def test_json_has_as_many_items_with_their_totals(
    client: httpx.Client, count: int, factor: int
) -> None:
    response = client.get(f"/json/{count}?m={factor}", headers={"Accept-Encoding": "identity"})
    assert response.headers["Content-Type"] == "application/json"
    assert "Content-Encoding" not in response.headers
    found = response.json()
    assert found["count"] == len(found["items"]) == count
    assert all(i["total"] == i["price"] * i["quantity"] * factor for i in found["items"])


@pytest.mark.parametrize("coding", ["gzip", "br"])
def test_json_is_compressed_for_who_asks(client: httpx.Client, coding: str) -> None:
    response = client.get("/json/50?m=2", headers={"Accept-Encoding": coding})
    assert response.headers["Content-Encoding"] == coding
    assert response.json()["count"] == 50


def test_upload_counts_the_bytes(client: httpx.Client) -> None:
    for size in (17, 512_000, 20_971_520):
        assert client.post("/upload", content=bytes(size)).text == str(size)


def test_static_files_have_their_type_and_codings(client: httpx.Client) -> None:
    plain = client.get("/static/app.js", headers={"Accept-Encoding": "identity"})
    assert plain.headers["Content-Type"].partition(";")[0] in (
        "text/javascript",
        "application/javascript",
    )
    assert plain.content == SCRIPT
    assert (
        client.get("/static/app.js", headers={"Accept-Encoding": "br;q=1, gzip;q=0.8"}).content
        == SCRIPT
    )
    assert client.get("/static/nonexistent.txt").status_code == 404


@pytest.mark.parametrize("name", ["wsgi", "flask", "fastapi"])
def test_description_of_an_entry_is_whole(name: str) -> None:
    found = json.loads((ENTRIES / name / "meta.json").read_text())
    assert set(found["tests"]) == PROFILES
    assert found["type"] in ("engine", "production")
    names = {"display_name", "language", "engine", "description", "repo", "enabled", "maintainers"}
    assert names <= set(found)
