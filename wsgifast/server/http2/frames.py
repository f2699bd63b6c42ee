"""The h2 library's connection, adapted: bytes in, events out, and the other way round.

Sans I/O: no socket, thread or clock. The caller holds the connection's lock.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable
from typing import Any

import hpack
from h2.config import H2Configuration
from h2.connection import ConnectionInputs, H2Connection
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated, Event
from h2.exceptions import (
    DenialOfServiceError,
    FrameTooLargeError,
    InvalidBodyLengthError,
    ProtocolError,
    StreamClosedError,
)
from h2.settings import SettingCodes, Settings
from h2.stream import StreamInputs
from hyperframe.frame import (
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from ...errors import WSGIFastError
from ..options import Options

# The last stream of the first of two GOAWAY frames: none is refused yet (RFC 9113 section 6.8).
ALL_STREAMS = 2**31 - 1
# RFC 9113 section 6.9.2.
_DEFAULT_WINDOW_BYTES = 65_535
# The longest DATA frame, even if the client accepts more: other streams' frames go in between.
_FRAME_BYTES = 64 * 1024
# Length in 24 bits, type, flags, stream (RFC 9113 section 4.1).
_FRAME_HEAD = struct.Struct(">BHBBI")
_DATA, _END_STREAM = 0x0, 0x1

_KNOWN_SETTINGS = frozenset(SettingCodes)

# The encoder's table (RFC 7541 section 4.2): hpack searches all of it for each header, so a client
# must not be able to enlarge it.
_TABLE_BYTES = 4096
# hpack's Huffman coder takes quadratic time: 64 KiB took 350 ms. Longer headers are sent plain.
_HUFFMAN_BYTES = 512
# More changes of a table's size at the begin of one head are a flood; two are of use (section 4.2).
_TABLE_CHANGES = 8
# Fields beyond gunicorn's limit that are decoded: cookies may come one by one (RFC 9113 section
# 8.2.3), and count as one.
_CRUMBS = 512

# Headers stay bytes, for HTTP/1's parser. Those of responses have been checked already.
_CONFIG = H2Configuration(
    client_side=False,
    header_encoding=None,
    validate_outbound_headers=False,
    normalize_outbound_headers=False,
)


class _Values(list[Any]):
    """The values of a setting, of which the first is in effect; replaces h2's deque."""

    __slots__ = ()

    def popleft(self) -> Any:
        return self.pop(0)


class _SmallSettings(Settings):
    """h2's Settings without deques, which take half of the memory of an idle connection."""

    def __init__(self, *, client: bool, initial_values: dict[Any, int] | None = None) -> None:
        super().__init__(client, initial_values)
        self.shrink()

    def shrink(self) -> None:
        for code, values in self._settings.items():
            self._settings[code] = _Values(values)  # type: ignore[assignment]


class _OwnSettings(_SmallSettings):
    """The server's settings as h2 enforces them, without the limit of streams.

    h2 would end the connection when it is exceeded; see :meth:`Frames._receive_headers_frame`.
    """

    max_concurrent_streams = 2**32 + 1


class StreamRefused(Event):
    """A stream has been reset, before its request or in the middle of it.

    :ivar malformed: what is wrong with the request (RFC 9113 section 8.1.1); "" if it exceeded
        MAX_CONCURRENT_STREAMS.
    """

    def __init__(self, stream_id: int, malformed: str = "") -> None:
        self.stream_id = stream_id
        self.malformed = malformed


class _Encoder(hpack.Encoder):
    """hpack's, which does not take long for long headers."""

    def add(self, to_add: Any, sensitive: bool, huffman: bool = False) -> bytes:
        name, value = to_add
        return super().add(to_add, sensitive, huffman and len(name) + len(value) <= _HUFFMAN_BYTES)


class _Decoder(hpack.Decoder):
    """hpack's, with limits for heads that are short and decode slowly.

    :param most_fields: of one head.
    """

    def __init__(self, most_fields: int) -> None:
        super().__init__()
        self._most_fields = most_fields
        self._changes = 0

    def decode(self, data: bytes, raw: bool = False) -> Iterable[hpack.HeaderTuple]:
        self._changes = 0
        fields = list(super().decode(data, raw))
        if len(fields) > self._most_fields:
            raise hpack.OversizedHeaderListError(f"{len(fields)} fields in one head")
        return fields

    def _update_encoding_context(self, data: bytes | memoryview) -> int:
        self._changes += 1
        if self._changes > _TABLE_CHANGES:
            raise hpack.OversizedHeaderListError("too many changes of the table's size")
        return super()._update_encoding_context(data)


class Frames(H2Connection):
    """h2's connection, which resets single streams and survives a client's GOAWAY.

    :param admit: called with each received frame before anything is done with it; may raise.
    :ivar body_bytes: framed since the last :meth:`data_to_send`.
    """

    remote_settings: _SmallSettings

    # Closed streams that h2 remembers, because late frames may still arrive; 100 bytes each.
    MAX_CLOSED_STREAMS = 64

    def __init__(self, options: Options, admit: Callable[[Frame], object]) -> None:
        super().__init__(_CONFIG)
        self._admit = admit
        self.encoder = _Encoder()
        self.decoder = _Decoder(options.max_fields + _CRUMBS)
        window = options.http2_window_bytes
        values = {
            SettingCodes.MAX_CONCURRENT_STREAMS: options.http2_streams,
            SettingCodes.MAX_FRAME_SIZE: options.http2_frame_bytes,
            # A smaller one takes effect when the client has acknowledged it.
            SettingCodes.INITIAL_WINDOW_SIZE: max(window, _DEFAULT_WINDOW_BYTES),
        }
        self._header_block_bytes = options.http2_header_list_bytes
        if options.http2_header_list_bytes:
            values[SettingCodes.MAX_HEADER_LIST_SIZE] = options.http2_header_list_bytes
        self._smaller_window = window if window < _DEFAULT_WINDOW_BYTES else None
        self._most_streams = options.http2_streams
        self._bodies: list[bytes] = []  # framed here; h2's own buffer comes after them
        self.body_bytes = 0
        self.local_settings = _OwnSettings(client=False, initial_values=values)
        self.remote_settings = _SmallSettings(client=True)
        self.max_inbound_frame_size = options.http2_frame_bytes
        self.decoder.max_header_list_size = options.http2_header_list_bytes or 2**31

    def begin(self) -> None:
        """Send the server's settings."""
        self.initiate_connection()
        if self._smaller_window is not None:
            self.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: self._smaller_window})

    def receive(self, data: bytes) -> list[Any]:
        """Parse what was received.

        :returns: h2's events, and :class:`StreamRefused`.
        :raises h2.exceptions.ProtocolError: for a connection error; the GOAWAY frame is made.
        """
        events = self.receive_data(data)
        # h2 looks at frames and header blocks only when they are complete. Refuse those that are
        # too long before that.
        begun = self.incoming_buffer._data
        if len(begun) >= 3 and int.from_bytes(begun[:3], "big") > self.max_inbound_frame_size:
            self.close_connection(ErrorCodes.FRAME_SIZE_ERROR)
            raise FrameTooLargeError("a frame that is too long")
        limit = self._header_block_bytes
        if limit and self.unfinished_head_bytes() > limit:
            self.end_flood()
            raise DenialOfServiceError("a header block that is too long")
        return events

    def unfinished_head_bytes(self) -> int:
        """Return the size of a header block whose end has not come; 0 if there is none."""
        return sum(len(frame.data) for frame in self.incoming_buffer._headers_buffer)

    def send_body(self, number: int, data: bytes | memoryview, *, end_stream: bool) -> int:
        """Frame a part of a stream's body, which may be empty; its bytes are copied once.

        Does what h2's send_data() would do for each frame, which takes several times as long as
        encrypting it.

        :param data: no more than the windows allow.
        :param end_stream: set END_STREAM on the last frame.
        :returns: the number of frames.
        :raises h2.exceptions.ProtocolError: if the stream's state does not allow it.
        """
        size = len(data)
        stream = self.streams.get(number)
        if stream is None:
            raise StreamClosedError(number)
        self.state_machine.process_input(ConnectionInputs.SEND_DATA)
        stream.state_machine.process_input(StreamInputs.SEND_DATA)
        if end_stream:
            stream.state_machine.process_input(StreamInputs.SEND_END_STREAM)
        most = min(self.max_outbound_frame_size, _FRAME_BYTES)
        parts: list[bytes | memoryview] = []
        for start in range(0, size or 1, most):
            part = data[start : start + most]
            ends = end_stream and start + most >= size
            length, flags = len(part), _END_STREAM if ends else 0
            parts.append(_FRAME_HEAD.pack(length >> 16, length & 0xFFFF, _DATA, flags, number))
            parts.append(part)
        if before := super().data_to_send():
            self._bodies.append(before)
        self._bodies.append(b"".join(parts))
        self.outbound_flow_control_window -= size
        stream.outbound_flow_control_window -= size
        self.body_bytes += size
        return len(parts) // 2

    @property
    def has_output(self) -> bool:
        """Whether anything has been framed since the last :meth:`data_to_send`."""
        return bool(self._bodies or self._data_to_send)

    def data_to_send(self, amount: int | None = None) -> bytes:
        """Return everything framed since the last call."""
        self.body_bytes = 0
        bodies = self._bodies
        if not bodies:
            return super().data_to_send(amount)
        self._bodies = []
        if after := super().data_to_send():
            bodies.append(after)
        return bodies[0] if len(bodies) == 1 else b"".join(bodies)

    def end_flood(self) -> None:
        """End the connection with ENHANCE_YOUR_CALM (RFC 9113 section 7)."""
        self.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)

    def stream_window(self, stream: int) -> int:
        """Return a stream's flow-control window, which may be negative; 0 if it is closed."""
        known = self.streams.get(stream)
        return 0 if known is None else known.outbound_flow_control_window

    def is_open(self, stream: int) -> bool:
        """Whether anything can still be sent on a stream, a reset included."""
        known = self.streams.get(stream)
        return known is not None and not known.closed

    def _receive_frame(self, frame: Frame) -> list[Event]:
        self._admit(frame)
        return super()._receive_frame(frame)

    def _receive_headers_frame(self, frame: HeadersFrame) -> Any:
        """Reset a stream that is malformed, or one beyond the limit, and only that one.

        RFC 9113 sections 8.1.1 and 5.1.2. Its headers are decoded all the same, because HPACK's
        state depends on them.
        """
        number, most = frame.stream_id, self._most_streams
        known = self.streams.get(number)
        refuses = known is None and len(self.streams) >= most and self.open_inbound_streams >= most
        # h2 forgets it with the trailers, and compares it with DATA frames only.
        length = None if known is None else known._expected_content_length
        try:
            frames, events = super()._receive_headers_frame(frame)
            stream = self.streams.get(number)
            if stream is not None and "END_STREAM" in frame.flags:
                length = stream._expected_content_length if known is None else length
                if length is not None and length != stream._actual_content_length:
                    raise InvalidBodyLengthError(length, stream._actual_content_length)
        except ProtocolError as error:
            # A head that cannot be decoded ends the connection; so does a frame that the stream's
            # state does not allow, after which h2 has closed the stream.
            if isinstance(error.__cause__, hpack.HPACKError) or not self.is_open(number):
                raise
            return [], [self._reset_malformed(number, error)]
        if not refuses:
            return frames, events
        self.reset_stream(number, ErrorCodes.REFUSED_STREAM)
        return frames, [StreamRefused(number)]

    def _receive_data_frame(self, frame: DataFrame) -> Any:
        try:
            return super()._receive_data_frame(frame)
        except InvalidBodyLengthError as error:
            number = frame.stream_id
            if not self.is_open(number):
                raise
            event = self._reset_malformed(number, error)
            self.acknowledge_received_data(frame.flow_controlled_length, number)
            return [], [event]

    def _reset_malformed(self, number: int, error: ProtocolError) -> StreamRefused:
        self.reset_stream(number, ErrorCodes.PROTOCOL_ERROR)
        return StreamRefused(number, str(error))

    def _receive_settings_frame(self, frame: SettingsFrame) -> Any:
        """Ignore unknown settings (RFC 9113 section 6.5.2): h2 keeps, reports and forgets each."""
        settings = frame.settings
        for code in settings.keys() - _KNOWN_SETTINGS:
            del settings[code]
        table = SettingCodes.HEADER_TABLE_SIZE
        if table in settings:
            settings[table] = min(settings[table], _TABLE_BYTES)
        received = super()._receive_settings_frame(frame)
        self.remote_settings.shrink()
        return received

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> Any:
        """Go on with the open streams (RFC 9113 section 6.8); h2 would send nothing any more."""
        if frame.error_code:
            return super()._receive_goaway_frame(frame)
        event = ConnectionTerminated()
        event.error_code = ErrorCodes.NO_ERROR
        event.last_stream_id = frame.last_stream_id
        return [], [event]


def goaway(last_stream: int) -> bytes:
    """Return a GOAWAY frame after which the connection goes on; h2 would end it."""
    return bytes(GoAwayFrame(0, last_stream_id=last_stream).serialize())


# Rate limits for frames that cost a client nothing and the server something. Each is a leaky
# bucket: its capacity may arrive at once, and leaks away over its period.

# Streams that the client resets, or makes the server reset (CVE-2023-44487, "rapid reset", and
# CVE-2025-8671). This is gunicorn's limit; clients that cancel requests stay far below it.
RESETS = 200
# Frames that bring no part of a request: PING, SETTINGS, PRIORITY, RST_STREAM, empty DATA, unknown
# ones and others. Also gunicorn's limit.
CONTROL_FRAMES = 1000
# So many values of a SETTINGS frame, in bytes, count as one more frame: they take as long.
_SETTINGS_BYTES = 16 * 6
# WINDOW_UPDATE frames beyond those that are expected: one for the stream and one for the connection
# for each frame, and each KiB, that was sent.
WINDOWS = 2000
PERIOD_S = 10.0
_EARNED_PER_BYTE = 2 / 1024


class Flood(WSGIFastError):
    """A client exceeds one of the limits (RFC 9113 section 10.5)."""


# What each bucket holds, and what a client has done that fills it.
_BUCKETS = {
    "resets": (RESETS, "too many streams are reset"),
    "control": (CONTROL_FRAMES, "too many frames ask for nothing"),
    "windows": (WINDOWS, "windows are opened too often, by too little"),
}


class Floods:
    """The buckets of one connection."""

    __slots__ = ("_levels", "_since")

    def __init__(self, now: float) -> None:
        self._since = now
        self._levels = dict.fromkeys(_BUCKETS, 0.0)

    def admit(self, frame: Frame) -> None:
        """Count a received frame by what it costs, before anything is done with it.

        Streams that are reset are counted apart, as they cost more than the frame that does it.

        :raises Flood: as :meth:`count`.
        """
        if isinstance(frame, HeadersFrame):
            return
        if isinstance(frame, DataFrame):
            if frame.data or "END_STREAM" in frame.flags:
                return
        elif isinstance(frame, WindowUpdateFrame):
            self.count("windows", time.monotonic())
            return
        cost = 1
        if isinstance(frame, SettingsFrame):
            cost += frame.body_len // _SETTINGS_BYTES
        self.count("control", time.monotonic(), cost)

    def count(self, bucket: str, now: float, cost: int = 1) -> None:
        """:raises Flood: if the bucket is full."""
        levels = self._levels
        share = (now - self._since) / PERIOD_S
        self._since = now
        for each, (most, _) in _BUCKETS.items():
            if levels[each] > 0:  # a credit does not leak
                levels[each] = max(0.0, levels[each] - share * most)
        levels[bucket] += cost
        most, done = _BUCKETS[bucket]
        if levels[bucket] > most:
            raise Flood(done)

    def earn_windows(self, size: int, *, frames: int) -> None:
        """Allow WINDOW_UPDATE frames for data that has been sent.

        :param size: bytes.
        :param frames: DATA frames, except one that a window cut short.
        """
        self._levels["windows"] -= size * _EARNED_PER_BYTE + 2 * frames
