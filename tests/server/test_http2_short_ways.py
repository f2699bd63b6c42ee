"""HTTP/2: with the short ways around h2, a connection behaves like with h2 alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import hpack
import pytest
from h2.exceptions import ProtocolError

from tests.server.http2_peer import raw_frame
from tests.server.output_harness import OPTIONS
from tests.support.effort import LONG, effort
from wsgifast.http.stream_headers import Field
from wsgifast.server.http2.floods import Flood
from wsgifast.server.http2.frames import Frames, PlainRequest

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + raw_frame(4, 0)
GET = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"a"), (b":path", b"/")]
END_STREAM, END_HEADERS, PADDED, PRIORITY = 0x1, 0x4, 0x8, 0x20
HEADERS: list[list[Field]] = [
    GET,
    [*GET, (b"x-a", b"1"), (b"cookie", b"a"), (b"cookie", b"b")],
    [*GET, (b"content-length", b"0")],
    [*GET, (b"content-length", b"5")],
    [*GET, (b"Upper", b"1")],
    [*GET, (b"connection", b"close")],
    [*GET, (b"te", b"trailers")],
    [*GET, (b"host", b"b")],
    [*GET[:3], (b"x", b"y")],
    [*GET, GET[3]],
    [(b"x-trailer", b"1")],
    [(b":status", b"200")],
    [(b":method", b"HEAD"), *GET[1:]],
    [(b":method", b"CONNECT"), (b":authority", b"a:1")],
]


class OnlyH2(Frames):
    """Have all streams, and all headers and bodies of responses, go through h2."""

    def _parse_frames(self, data: bytes) -> list[Any]:
        return self.receive_data(data)

    def _is_answerable(self, stream: Any, *, has_headers: bool) -> bool:
        return False


class Side:
    """The connection of a server, and its visible effects."""

    def __init__(self, kind: type[Frames]) -> None:
        self.frames = kind(OPTIONS, lambda frame: None)
        self.frames.begin()
        self._decoder = hpack.Decoder()

    def receive(self, data: bytes) -> list[Any]:
        try:
            found = [seen(event) for event in self.frames.receive(data) if seen(event)]
        except (ProtocolError, Flood) as error:
            return [type(error).__name__, getattr(error, "error_code", None)]
        # h2 reports the end of a request without a body twice.
        whole = [("StreamEnded", [("stream_id", each[1])]) for each in found if each[-1] is True]
        return [each for each in found if each not in whole]

    def response(self, number: int, fields: list[Field], body: bytes | None) -> str:
        try:
            self.frames.send_headers_frame(number, fields, end_stream=body is None)
            if body is not None:
                room = self.frames.stream_window(number), self.frames.outbound_flow_control_window
                self.frames.send_body(number, body[: max(0, min(room))], end_stream=True)
        except ProtocolError as error:
            return type(error).__name__
        return "sent"

    def sent(self) -> list[Any]:
        """Return the frames that were made, with header blocks decoded to fields."""
        data, frames = self.frames.data_to_send(), []
        while data:
            end = 9 + int.from_bytes(data[:3], "big")
            kind, flags, number = data[3], data[4], int.from_bytes(data[5:9], "big")
            payload: Any = data[9:end]
            if kind == 1:
                payload = [tuple(field) for field in self._decoder.decode(payload, raw=True)]
            frames.append((kind, flags, number, payload))
            data = data[end:]
        return frames

    def state(self) -> Any:
        frames = self.frames
        numbers = range(1, 60, 2)
        return (
            frames.open_inbound_streams,  # first, since it drops the closed ones
            [(frames.is_open(number), frames.stream_window(number)) for number in numbers],
            frames.outbound_flow_control_window,
            frames.highest_inbound_stream_id,
        )


def seen(event: Any) -> Any:
    """Return an event as the connection uses it, or None for an event that it does not use."""
    name = type(event).__name__
    if name in ("PlainRequest", "RequestReceived"):
        is_plain = isinstance(event, PlainRequest)
        # h2 joins cookies in the list. We join them in the environ.
        fields = [tuple(field) for field in event.headers if field[0] != b"cookie"]
        ends = event.ends if is_plain else event.stream_ended is not None
        return "request", event.stream_id, fields, ends
    if name in ("PriorityUpdated", "SettingsAcknowledged"):
        return None
    details = {
        key: value
        for key, value in vars(event).items()
        if isinstance(value, int | bytes | str) and not key.startswith("_")
    }
    return name, sorted(details.items())


def pieces(chance: random.Random, encoder: hpack.Encoder) -> bytes:
    """Random frames of a client, mostly of requests."""
    number = chance.choice([1, 3, 5, 7, 9, 11, 13, 2, 0, 21])
    kind = chance.choice([1, 1, 1, 1, 1, 1, 0, 0, 2, 3, 4, 6, 7, 8, 8, 9, 0x10])
    flags = chance.choice([END_HEADERS | END_STREAM] * 6 + [END_HEADERS, END_STREAM, 0, 255])
    if kind == 1:
        block = encoder.encode(
            chance.choice(HEADERS[:3] * 3 + HEADERS), huffman=chance.random() < 0.5
        )
        if not chance.randrange(20):
            block = block[: chance.randrange(len(block))]
        if not chance.randrange(5):
            flags |= PRIORITY
            block = chance.choice([number, 0, 3]).to_bytes(4, "big") + b"\x10" + block
        if flags & END_HEADERS or chance.random() < 0.3:
            return raw_frame(1, number, block, flags=flags & ~PADDED)
        first, rest = block[:2], block[2:]
        more = raw_frame(9, number, rest, flags=END_HEADERS)
        return raw_frame(1, number, first, flags=flags & ~PADDED) + more
    payload = {
        0: bytes(chance.randrange(20)),
        2: chance.choice([0, number]).to_bytes(4, "big") + b"\x10",
        3: bytes(4),
        4: chance.choice([b"", b"\0\4\0\0\0\x64", b"\0\1\0\0\0\0", b"\0\5\0\0\x40\0"]),
        6: bytes(8),
        7: bytes(8),
        8: chance.choice([1, 1000, 2**31 - 1, 0]).to_bytes(4, "big"),
        9: b"\x82",
        0x10: number.to_bytes(4, "big") + b"u=1",
    }[kind]
    on = 0 if kind in (4, 6, 7, 0x10) and chance.random() < 0.9 else number
    if kind == 8 and chance.random() < 0.5:
        on = 0
    acks = 0 if kind in (4, 6) else flags & END_STREAM
    return raw_frame(kind, on, payload, flags=acks)


def requests(chance: random.Random, encoder: hpack.Encoder, opened: Iterator[int]) -> bytes:
    """Whole requests, mostly of one frame."""
    data = b""
    for _ in range(chance.choice([1, 1, 2, 5])):
        block = encoder.encode(chance.choice(HEADERS[:3] * 5 + HEADERS))
        number = next(opened) + (not chance.randrange(30))
        ends = END_STREAM if chance.randrange(4) else 0
        data += raw_frame(1, number, block, flags=END_HEADERS | ends)
        if not ends:
            for size in chance.choice([(5,), (2, 3), (0,), (9,), (), (5, 1)]):
                flags = chance.choice([END_STREAM, END_STREAM, 0])
                data += raw_frame(0, number, bytes(size), flags=flags)
    return data


def cut(chance: random.Random, data: bytes) -> list[bytes]:
    """Cut bytes at random places, but mostly not at all."""
    cuts = sorted(chance.choices(range(1, len(data)), k=chance.choice([0, 0, 0, 1, 3])))
    return [data[start:end] for start, end in pairwise([0, *cuts, len(data)])]


def compare(steps: list[Callable[[Side], Any]]) -> None:
    short, alone = Side(Frames), Side(OnlyH2)
    for number, step in enumerate(steps):
        found, expected = step(short), step(alone)
        assert found == expected, number
        assert short.sent() == alone.sent(), number
        assert short.state() == alone.state(), number
        if found and isinstance(found, list) and isinstance(found[0], str):
            return  # the connection has ended


@pytest.mark.parametrize("start", range(8))
def test_any_frames_have_the_same_effect_as_on_h2(start: int) -> None:
    for case in range(effort(40)):
        seed = random.randrange(2**32) if LONG else start * 1000 + case
        chance, encoder = random.Random(seed), hpack.Encoder()
        data = PREFACE if chance.randrange(3) else PREFACE + pieces(chance, encoder)
        steps: list[Callable[[Side], Any]] = [
            partial(Side.receive, data=part) for part in cut(chance, data)
        ]
        opened = iter(range(1, 10_000, 2))
        for _ in range(chance.randrange(1, 40)):
            if chance.random() < 0.6:
                data = requests(chance, encoder, opened) if chance.random() < 0.7 else b""
                if not data or not chance.randrange(6):
                    data += pieces(chance, encoder) + requests(chance, encoder, opened)
                steps += [partial(Side.receive, data=part) for part in cut(chance, data)]
            else:
                stream = chance.randrange(1, 40, 2)
                body = chance.choice([b"", b"body", bytes(20_000), None])
                status = chance.choice([b"200", b"404", b"103", b"304"])
                fields = [(b":status", status), (b"x-a", b"1"), (b"date", b"now")]
                steps.append(partial(Side.response, number=stream, fields=fields, body=body))
        try:
            compare(steps)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error


def plain(
    number: int, *, flags: int = END_HEADERS | END_STREAM, before: bytes = b"", cookie: int = 1
) -> bytes:
    fields = [*GET, (b"cookie", b"a" * cookie)]
    block = hpack.Encoder().encode(fields, huffman=False)
    return raw_frame(1, number, before + block, flags=flags)


@pytest.mark.parametrize(
    "parts",
    [
        [PREFACE + plain(1) + plain(3)],
        [PREFACE[:20], PREFACE[20:] + plain(1), plain(3)],
        [PREFACE[:20] + plain(1)],
        [PREFACE + plain(1), plain(3, flags=0) + plain(5)],
        [PREFACE + plain(1), plain(2**31 | 3), plain(2**31 | 5)],
        [PREFACE + plain(1), plain(3, flags=END_HEADERS | PRIORITY, before=bytes(5))],
        [PREFACE + plain(1), raw_frame(1, 3, b"\x82\x84", flags=END_HEADERS | PRIORITY)],
        [PREFACE + plain(1), plain(3, cookie=16_000), plain(5, cookie=17_000)],
        [PREFACE + plain(1), plain(3)[:30], plain(3)[30:] + plain(5)],
    ],
    ids=[
        "after the preface", "after a part of it", "in its place", "in a header block",
        "reserved bit", "priority", "short priority", "too long", "in two parts",
    ],
)  # fmt: skip
def test_unusual_headers_frames_are_as_on_h2(parts: list[bytes]) -> None:
    compare([partial(Side.receive, data=part) for part in parts])


def test_requests_after_the_preface_take_a_short_way() -> None:
    for parts in (
        [PREFACE + plain(1) + plain(3)],
        [PREFACE[:20], PREFACE[20:] + plain(1) + plain(3)],
    ):
        frames = Side(Frames).frames
        events = [event for part in parts for event in frames.receive(part)]
        assert [each.stream_id for each in events if isinstance(each, PlainRequest)] == [3]


def test_response_after_short_ways_may_have_trailers() -> None:
    for kind in (Frames, OnlyH2):
        side = Side(kind)
        side.receive(PREFACE + raw_frame(1, 1, hpack.Encoder().encode(GET), flags=5))
        side.sent()
        side.frames.send_headers_frame(1, [(b":status", b"200")])
        side.frames.send_body(1, b"body", end_stream=False)
        side.frames.send_headers_frame(1, [(b"x-trailer", b"1")], end_stream=True)
        assert [frame[:2] for frame in side.sent()] == [(1, 4), (0, 0), (1, 5)]
        assert not side.frames.is_open(1)


def test_long_headers_of_a_response_are_continued() -> None:
    for kind in (Frames, OnlyH2):
        side = Side(kind)
        side.receive(PREFACE + raw_frame(1, 1, hpack.Encoder().encode(GET), flags=5))
        side.frames.data_to_send()
        side.frames.send_headers_frame(1, [(b":status", b"200"), (b"x-a", b"a" * 40_000)])
        data, kinds = side.frames.data_to_send(), []
        while data:
            kinds.append((data[3], data[4]))
            data = data[9 + int.from_bytes(data[:3], "big") :]
        assert kinds == [(1, 0), (9, 0), (9, END_HEADERS)]
