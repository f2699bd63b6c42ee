"""Flask, Django and Falcon on FastWorker, without changes to their apps."""

from __future__ import annotations

import concurrent.futures
import json
from pathlib import Path

import pytest

from tests.support.http import Connection
from tests.workers.serving import fast_worker

SOURCE = Path(__file__).with_name("frameworks.py").read_bytes()


def test_flask_uploads_and_streams_work_on_fastworker() -> None:
    with fast_worker(app="tests.workers.frameworks:flask_app") as server:
        part = b'--x\r\nContent-Disposition: form-data; name="name"\r\n\r\nme\r\n'
        part += b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
        body = part + b"a" * 700_000 + b"\r\n--x--\r\n"
        with Connection(server.address) as connection:
            headers = [("Content-Type", "multipart/form-data; boundary=x")]
            response = connection.request("/upload", method="POST", headers=headers, body=body)
            assert response.body == b"700000 me"
            streamed = connection.request("/stream?word=a")
            assert streamed.body.splitlines()[999] == b"999 a"
            sent = connection.request("/send")
            assert sent.body == SOURCE
            etag = sent.header("ETag")
            assert etag is not None
            again = connection.request("/send", headers=[("If-None-Match", etag)])
            assert again.status == 304
            part_of_it = connection.request("/send", headers=[("Range", "bytes=10-19")])
            assert (part_of_it.status, part_of_it.body) == (206, SOURCE[10:20])


@pytest.mark.parametrize("app", ["flask_app", "django_app"])
def test_quick_lines_of_framework_stream_share_chunks(app: str) -> None:
    expected = "".join(f"line {number}\n" for number in range(1000)).encode()
    with (
        fast_worker(app=f"tests.workers.frameworks:{app}") as server,
        Connection(server.address) as connection,
        Connection(server.address) as other,
    ):
        fewest = 1000
        # On a loaded machine, the time between lines may be too long.
        for _ in range(10):
            connection.send_request("/burst")
            assert connection.read_headers().status == 200
            received = b""
            chunks = 0
            while len(received) < len(expected):
                received += connection.read_chunk()
                chunks += 1
            assert received == expected
            assert other.request("/go").status == 200
            assert connection.read_to_end_of_chunks() == b"end"
            fewest = min(fewest, chunks)
            if fewest < 500:
                break
        assert fewest < 500


def test_falcon_bodies_and_files_work_on_fastworker() -> None:
    app = "tests.workers.frameworks:falcon_app"
    with fast_worker(app=app) as server, Connection(server.address) as connection:
        headers = [("Content-Type", "application/json")]
        response = connection.request("/", method="POST", headers=headers, body=b'{"a": 1}')
        assert json.loads(response.body) == {"got": {"a": 1}, "length": 8}
        assert connection.request("/").body == SOURCE


@pytest.mark.parametrize("buffered", [True, False])
def test_django_sees_upload_in_chunks_if_buffered(buffered: bool) -> None:
    body = b"a" * 700_000
    with (
        fast_worker(
            app="tests.workers.frameworks:django_app", attributes={"buffer_bodies": buffered}
        ) as server,
        Connection(server.address) as connection,
    ):
        response = connection.request("/echo", method="POST", body=[body])
        assert response.status == 200
        assert response.body == (body if buffered else b"")


def test_django_keeps_a_database_connection_a_thread() -> None:
    with fast_worker(app="tests.workers.frameworks:django_app") as server:

        def ask(_: int) -> list[dict[str, int]]:
            with Connection(server.address) as connection:
                stream = connection.request("/stream")
                assert stream.body.split() == [b"%d" % n for n in range(50)]
                assert connection.request("/file").body == SOURCE
                return [json.loads(connection.request("/db").body) for _ in range(10)]

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            responses = [response for found in pool.map(ask, range(16)) for response in found]
        connections: dict[int, set[int]] = {}
        for response in responses:
            assert response["value"] == 7
            connections.setdefault(response["thread"], set()).add(response["connection"])
        assert len(connections) <= 4, "more threads than --threads ran the app"
        assert all(len(found) == 1 for found in connections.values()), connections
