"""Flask and Django, unchanged, on FastWorker."""

from __future__ import annotations

import concurrent.futures
import json
from pathlib import Path

import pytest

from tests.support.http import Connection
from tests.workers.serving import fast_worker

SOURCE = Path(__file__).with_name("frameworks.py").read_bytes()


def test_flask_uploads_streams_and_files_work_on_fastworker() -> None:
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


@pytest.mark.parametrize("buffered", [True, False])
def test_django_sees_upload_in_chunks_only_if_it_is_buffered(buffered: bool) -> None:
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


def test_django_keeps_a_database_connection_for_each_thread() -> None:
    with fast_worker(app="tests.workers.frameworks:django_app") as server:

        def ask(_: int) -> list[dict[str, int]]:
            with Connection(server.address) as connection:
                stream = connection.request("/stream")
                assert stream.body.split() == [b"%d" % n for n in range(50)]
                assert connection.request("/file").body == SOURCE
                return [json.loads(connection.request("/db").body) for _ in range(10)]

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = [answer for found in pool.map(ask, range(16)) for answer in found]
        connections: dict[int, set[int]] = {}
        for answer in answers:
            assert answer["value"] == 7
            connections.setdefault(answer["thread"], set()).add(answer["connection"])
        assert len(connections) <= 4, "more threads than --threads ran the app"
        assert all(len(found) == 1 for found in connections.values()), connections
