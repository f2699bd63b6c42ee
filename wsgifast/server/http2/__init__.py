"""HTTP/2 (RFC 9113) for FastWorker's core. It needs the package h2."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

from ...errors import ConfigurationError
from ...hosts import H2


def check_h2() -> None:
    """Check that h2 has all necessary names, and that it can exchange a request and a response.

    :raises ConfigurationError: if the installed h2 does not work.
    """
    if find_spec("h2") is not None and (missing := H2.missing()):
        raise ConfigurationError(
            f"{H2.lacks(missing)}, which FastWorker uses for HTTP/2. "
            f"Tested is h2 {', '.join(H2.tested)}"
        )
    try:
        _exchange()
    except Exception as error:
        try:
            installed = f"h2 {version('h2')}"
        except PackageNotFoundError:
            installed = "h2"
        raise ConfigurationError(
            f"HTTP/2: the installed {installed} does not work ({type(error).__name__}: {error}): "
            "pip install --upgrade 'wsgifast[http2]', or remove h2 from http_protocols"
        ) from error


def _exchange() -> None:
    from h2.config import H2Configuration
    from h2.connection import H2Connection
    from h2.events import DataReceived, RequestReceived

    from .floods import Floods
    from .frames import Frames

    for name in vars(Frames):
        if name.startswith("_receive"):  # h2 must have the method that this one overrides
            getattr(H2Connection, name)
    floods = Floods(0.0)
    limits: Any = SimpleNamespace(
        max_fields=100,
        http2_streams=10,
        http2_window_bytes=1000,
        http2_frame_bytes=16_384,
        http2_header_list_bytes=65_536,
    )
    server = Frames(limits, floods.admit)
    client = H2Connection(H2Configuration(client_side=True))
    server.begin()
    client.initiate_connection()
    client.send_headers(1, [
        (":method", "POST"), (":scheme", "https"), (":authority", "a"), (":path", "/"),
        ("content-length", "2"),
    ])  # fmt: skip
    client.send_data(1, b"ab")
    client.send_headers(1, [("x-trailer", "c")], end_stream=True)
    events = server.receive(client.data_to_send())
    if not any(isinstance(event, RequestReceived) for event in events):
        raise RuntimeError("a request is not received")
    server.send_headers_frame(1, [(b":status", b"200")])
    server.send_body(1, b"body", end_stream=True)
    if server.highest_inbound_stream_id != 1 or server.is_open(1):
        raise RuntimeError("a response does not end its stream")
    server.stream_window(1)
    answered = client.receive_data(server.data_to_send())
    if [event.data for event in answered if isinstance(event, DataReceived)] != [b"body"]:
        raise RuntimeError("a response is not sent")
