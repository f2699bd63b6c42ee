"""WebSockets on FastWorker, by libraries that use `gunicorn.socket`."""

from __future__ import annotations

import json

import pytest
import simple_websocket

from tests.workers.serving import fast_worker

TEXTS = ["hello", "grüße", "x" * 200_000]


@pytest.mark.parametrize("rounds", [1, 5])
def test_flask_sock_echoes_on_fastworker(rounds: int) -> None:
    """Each of two threads is free again after its WebSocket."""
    with fast_worker("--threads=2", app="tests.workers.websockets:sock_app") as server:
        url = server.url.replace("http", "ws") + "/echo"
        for _ in range(rounds):
            client = simple_websocket.Client(url)
            for text in TEXTS:
                client.send(text)
                assert client.receive(timeout=60) == text
            client.send(b"\x00\xff" * 500)
            assert client.receive(timeout=60) == b"\x00\xff" * 500
            client.send("bye")
            with pytest.raises(simple_websocket.ConnectionClosed):
                client.receive(timeout=60)
            assert server.get("/").body.startswith(b"a page")
        assert "Traceback" not in server.log()


def _message(client: simple_websocket.Client) -> str:
    """Receive a message of Engine.IO. Answer its pings, which a slow machine may cause."""
    while (text := str(client.receive(timeout=60))) == "2":
        client.send("3")
    return text


def test_flask_socketio_answers_on_fastworker() -> None:
    with fast_worker("--threads=4", app="tests.workers.websockets:socketio_app") as server:
        url = server.url.replace("http", "ws") + "/socket.io/?EIO=4&transport=websocket"
        client = simple_websocket.Client(url)
        assert _message(client).startswith("0{")  # Engine.IO: open
        client.send("40")  # Socket.IO: connect
        assert _message(client).startswith("40{")
        for text in TEXTS:
            client.send(f"42{json.dumps(['say', text])}")
            assert json.loads(_message(client)[2:]) == ["said", text]
        assert server.get("/").body.startswith(b"a page")
        client.close()
        assert server.get("/").body.startswith(b"a page")
        assert "Traceback" not in server.log()
