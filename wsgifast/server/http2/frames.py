"""h2's connection with changes for a server: it parses received bytes, and makes frames.

It has no socket, thread or clock. The caller must have the connection's lock.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from h2.config import H2Configuration
from h2.connection import ConnectionInputs, ConnectionState, H2Connection
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
from h2.stream import H2Stream, StreamClosedBy, StreamInputs, StreamState
from hpack import HPACKError
from hyperframe.frame import (
    DataFrame,
    ExtensionFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    SettingsFrame,
)

from ...http.stream_headers import Field, PlainHeaders, plain_headers
from ..options import Options
from .header_blocks import TABLE_BYTES, Decoder, Encoder

# The number of the last stream in the first of two GOAWAY frames. This number refuses no stream
# (RFC 9113 section 6.8).
ALL_STREAMS = 2**31 - 1
# The default of INITIAL_WINDOW_SIZE (RFC 9113 section 6.9.2).
_DEFAULT_WINDOW_BYTES = 65_535
_PRIORITY_UPDATE = 0x10  # RFC 9218 section 7.1
_NO_OLD_PRIORITIES = 0x9  # SETTINGS_NO_RFC7540_PRIORITIES
# The maximum size of a DATA frame. Clients may accept more, but other streams' frames must not
# wait.
_FRAME_BYTES = 64 * 1024
# A client's connection preface (RFC 9113 section 3.4).
_PREFACE_BYTES = 24
# A frame begins with its length (24 bits), type, flags and stream (RFC 9113 section 4.1).
_FRAME_HEADER = struct.Struct(">BHBBI")
_DATA, _HEADERS, _CONTINUATION = 0x0, 0x1, 0x9
_END_STREAM, _END_HEADERS, _PRIORITY = 0x1, 0x4, 0x20

_KNOWN_SETTINGS = frozenset(SettingCodes)

# If there are this many streams, closed streams are dropped. h2 would search them for each new
# stream.
_CLOSED_STREAMS = 16
# The number of fields that are decoded in addition to gunicorn's limit. A client may split a Cookie
# header into several fields (RFC 9113 section 8.2.3), which count as one.
_COOKIE_FIELDS = 512

# Headers are bytes, because HTTP/1's parser needs bytes. Response headers were checked before.
_CONFIG = H2Configuration(
    client_side=False,
    header_encoding=None,
    validate_outbound_headers=False,
    normalize_outbound_headers=False,
)


class _Values(list[Any]):
    """The values of a setting, in place of h2's deque. The first value is in effect."""

    __slots__ = ()

    def popleft(self) -> Any:
        return self.pop(0)


class _SmallSettings(Settings):
    """h2's Settings without deques, which use half of the memory of an idle connection."""

    def __init__(self, *, client: bool, initial_values: dict[Any, int] | None = None) -> None:
        super().__init__(client, initial_values)
        self.shrink()

    def shrink(self) -> None:
        for code, values in self._settings.items():
            self._settings[code] = _Values(values)  # type: ignore[assignment]


class _OwnSettings(_SmallSettings):
    """The server's settings as h2 enforces them, except the limit of concurrent streams.

    h2 would end a connection that exceeds the limit. See :meth:`Frames._receive_headers_frame`.
    """

    max_concurrent_streams = 2**32 + 1


class StreamRefused(Event):
    """The server has reset a stream, before its request was passed on or while its body arrives.

    :ivar malformed: why the request is malformed (RFC 9113 section 8.1.1). Empty if the client
        exceeded MAX_CONCURRENT_STREAMS.
    """

    def __init__(self, stream_id: int, malformed: str = "") -> None:
        self.stream_id = stream_id
        self.malformed = malformed


class PlainRequest(Event):
    """A request that needs no frame objects of h2. It replaces h2's event.

    :ivar headers: the fields as they were received.
    :ivar ends: whether the request has no body.
    """

    def __init__(
        self, stream_id: int, headers: list[Field], plain: PlainHeaders, *, ends: bool
    ) -> None:
        self.stream_id = stream_id
        self.headers = headers
        self.plain = plain
        self.ends = ends


class PriorityUpdate(Event):
    """The client has changed the priority of a stream, which may not have begun (RFC 9218, 7.1).

    :ivar value: like the value of the `priority` header.
    """

    def __init__(self, stream_id: int, value: str) -> None:
        self.stream_id = stream_id
        self.value = value


class Frames(H2Connection):
    """h2's connection, with faster paths, and with errors that end only one stream.

    For most streams, the headers of a plain request and its response do not pass through h2. h2's
    objects have the same state afterwards as if they had. All other frames pass through h2.

    :param admit: called with each frame before h2 handles it. It may raise an error.
    :ivar body_bytes: the number of body bytes framed since the last :meth:`data_to_send`.
    """

    remote_settings: _SmallSettings
    encoder: Encoder  # type: ignore[assignment]
    decoder: Decoder  # type: ignore[assignment]

    # The number of closed streams that h2 stores for late frames. Each of them uses 100 bytes.
    MAX_CLOSED_STREAMS = 64

    def __init__(self, options: Options, admit: Callable[[Frame], object]) -> None:
        super().__init__(_CONFIG)
        self._admit = admit
        self.encoder = Encoder()
        self.decoder = Decoder(options.max_fields + _COOKIE_FIELDS)
        window = options.http2_window_bytes
        values = {
            SettingCodes.MAX_CONCURRENT_STREAMS: options.http2_streams,
            SettingCodes.MAX_FRAME_SIZE: options.http2_frame_bytes,
            # The server ignores the priorities of RFC 7540 (RFC 9218 section 2.1).
            _NO_OLD_PRIORITIES: 1,
            # Another SETTINGS frame announces a smaller window. It is in effect when the client has
            # acknowledged that frame.
            SettingCodes.INITIAL_WINDOW_SIZE: max(window, _DEFAULT_WINDOW_BYTES),
        }
        self._header_block_bytes = options.http2_header_list_bytes
        if options.http2_header_list_bytes:
            values[SettingCodes.MAX_HEADER_LIST_SIZE] = options.http2_header_list_bytes
        self._smaller_window = window if window < _DEFAULT_WINDOW_BYTES else None
        self._max_streams = options.http2_streams
        self._framed: list[bytes | memoryview] = []  # frames that precede those in h2's buffer
        self._preface_left = _PREFACE_BYTES  # the bytes of the preface that have not arrived
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
        """Parse received bytes.

        :returns: events of h2 and of this module.
        :raises h2.exceptions.ProtocolError: for a connection error. A GOAWAY frame was made.
        """
        events = self._parse_frames(data)
        # h2 checks frames and header blocks only when they are complete. Those that are too long
        # are refused here before they are complete.
        begun = self.incoming_buffer._data
        if len(begun) >= 3 and int.from_bytes(begun[:3], "big") > self.max_inbound_frame_size:
            self.close_connection(ErrorCodes.FRAME_SIZE_ERROR)
            raise FrameTooLargeError("a frame is too long")
        limit = self._header_block_bytes
        if limit and self.unfinished_header_bytes() > limit:
            self.end_flood()
            raise DenialOfServiceError("a header block is too long")
        return events

    def _parse_frames(self, data: bytes) -> list[Any]:
        """Parse received bytes. h2 parses all frames except the headers of plain requests."""
        if self.incoming_buffer._data:
            return self.receive_data(data)  # it begins with the end of a frame
        events: list[Any] = []
        size = len(data)
        at, passed = self._preface_left, 0
        # `at` is the position of the next frame. h2 has got all bytes before `passed`.
        self._preface_left = max(0, at - size)
        while at + _FRAME_HEADER.size <= size:
            high, low, kind, flags, number = _FRAME_HEADER.unpack_from(data, at)
            begin = at + _FRAME_HEADER.size
            end = begin + (high << 16 | low)
            if end > size:
                break
            if kind == _HEADERS and flags & ~(_END_STREAM | _PRIORITY) == _END_HEADERS:
                if passed < at:
                    events += self.receive_data(data[passed:at])
                event = self._begin_plain(number & ALL_STREAMS, flags, data[begin:end])
                events += self.receive_data(data[at:end]) if event is None else [event]
                passed = end
            at = end
        if passed < size:
            events += self.receive_data(data[passed:])
        return events

    def unfinished_header_bytes(self) -> int:
        """Return the size of an incomplete header block, or 0 if there is none."""
        return sum(len(frame.data) for frame in self.incoming_buffer._headers_buffer)

    def send_body(self, number: int, data: bytes | memoryview, *, end_stream: bool) -> int:
        """Frame a part of a stream's body, which may be empty. The bytes are copied once.

        It replaces h2's send_data(), which takes several times as long as the encryption.

        :param data: not longer than the windows allow.
        :param end_stream: whether to set END_STREAM on the last frame.
        :returns: the number of frames.
        :raises h2.exceptions.ProtocolError: if the stream's state does not allow a DATA frame.
        """
        size = len(data)
        stream = self.streams.get(number)
        if stream is None:
            raise StreamClosedError(number)
        if not self._is_answerable(stream, has_headers=True):
            self.state_machine.process_input(ConnectionInputs.SEND_DATA)
            stream.state_machine.process_input(StreamInputs.SEND_DATA)
            if end_stream:
                stream.state_machine.process_input(StreamInputs.SEND_END_STREAM)
        elif end_stream:
            stream.state_machine.state = StreamState.CLOSED
            stream.state_machine.stream_closed_by = StreamClosedBy.SEND_END_STREAM
        limit = min(self.max_outbound_frame_size, _FRAME_BYTES)
        parts: list[bytes | memoryview] = []
        for start in range(0, size or 1, limit):
            part = data[start : start + limit]
            ends = end_stream and start + limit >= size
            length, flags = len(part), _END_STREAM if ends else 0
            parts.append(_FRAME_HEADER.pack(length >> 16, length & 0xFFFF, _DATA, flags, number))
            parts.append(part)
        is_immutable = isinstance(data, bytes) or isinstance(data.obj, bytes)
        # The buffer for reading files is reused before these frames are sent, so it is copied.
        self._append(parts if is_immutable else [b"".join(parts)])
        self.outbound_flow_control_window -= size
        stream.outbound_flow_control_window -= size
        self.body_bytes += size
        return len(parts) // 2

    def _append(self, frames: list[bytes | memoryview]) -> None:
        """Add frames of this class after the frames of h2."""
        if before := super().data_to_send():
            self._framed.append(before)
        self._framed += frames

    @property
    def has_output(self) -> bool:
        """Whether frames were made since the last :meth:`data_to_send`."""
        if not self._framed:
            self._append([])
        return bool(self._framed)

    def send_headers_frame(
        self, number: int, fields: list[Field], *, end_stream: bool = False
    ) -> None:
        """Frame the headers of a response, or trailers.

        :raises h2.exceptions.ProtocolError: if the stream's state does not allow headers.
        """
        stream = self.streams.get(number)
        is_interim = fields[0][1][:1] == b"1"
        if stream is None or is_interim or not self._is_answerable(stream, has_headers=False):
            self.send_headers(number, fields, end_stream)
            return
        machine = stream.state_machine
        machine.headers_sent = True
        if end_stream:
            machine.state = StreamState.CLOSED
            machine.stream_closed_by = StreamClosedBy.SEND_END_STREAM
        block = self.encoder.encode(fields)
        limit = self.max_outbound_frame_size
        frames: list[bytes | memoryview] = []
        kind, flags = _HEADERS, _END_STREAM if end_stream else 0
        for start in range(0, len(block) or 1, limit):
            part = block[start : start + limit]
            if start + limit >= len(block):
                flags |= _END_HEADERS
            size = len(part)
            frames.append(_FRAME_HEADER.pack(size >> 16, size & 0xFFFF, kind, flags, number))
            frames.append(part)
            kind, flags = _CONTINUATION, 0
        self._append(frames)

    def _is_answerable(self, stream: H2Stream, *, has_headers: bool) -> bool:
        """Return whether the server may send a frame on a stream whose request is complete.

        :param has_headers: whether the headers of the response must have been sent.
        """
        machine = stream.state_machine
        return (
            machine.state is StreamState.HALF_CLOSED_REMOTE
            and bool(machine.headers_sent) is has_headers
            and self.state_machine.state is ConnectionState.SERVER_OPEN
        )

    def data_to_send(self, amount: int | None = None) -> bytes:
        """Return all frames that were made since the last call."""
        self.body_bytes = 0
        self._append([])
        framed, self._framed = self._framed, []
        return b"".join(framed)

    def end_flood(self) -> None:
        """End the connection with ENHANCE_YOUR_CALM (RFC 9113 section 7)."""
        self.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)

    def stream_window(self, stream: int) -> int:
        """Return a stream's flow-control window, which may be negative. 0 for a closed stream."""
        known = self.streams.get(stream)
        return 0 if known is None else known.outbound_flow_control_window

    def is_open(self, stream: int) -> bool:
        """Return whether a stream can still send frames, such as a reset."""
        known = self.streams.get(stream)
        return known is not None and not known.closed

    def _receive_frame(self, frame: Frame) -> list[Event]:
        self._admit(frame)
        if type(frame) is ExtensionFrame and frame.type == _PRIORITY_UPDATE:
            return [_priority_update(frame)]
        return super()._receive_frame(frame)

    def _begin_plain(self, number: int, flags: int, block: bytes) -> PlainRequest | None:
        """Begin a stream with a plain request. Return None if h2 must handle the HEADERS frame.

        :param block: the payload of the frame. It has no padding.
        """
        if (
            number <= self.highest_inbound_stream_id
            or not number & 1
            or len(self.streams) >= self._max_streams
            or len(block) > self.max_inbound_frame_size
            or self.state_machine.state is not ConnectionState.SERVER_OPEN
            or self.incoming_buffer._headers_buffer
        ):
            return None
        if flags & _PRIORITY:
            if len(block) < 5 or int.from_bytes(block[:4], "big") & ALL_STREAMS == number:
                return None
            block = block[5:]
        decoder = self.decoder
        try:
            fields = decoder.fields(block)
        except Exception as error:  # noqa: BLE001 - h2 gets the error when it decodes the frame
            decoder.keep(error)
            return None
        plain = plain_headers(fields)
        ends = bool(flags & _END_STREAM)
        if plain is None or (ends and plain.length):
            decoder.keep(fields)
            return None
        if len(self.streams) >= _CLOSED_STREAMS:
            self.forget_closed()
        stream = H2Stream(
            number,
            config=self.config,
            inbound_window_size=self.local_settings.initial_window_size,
            outbound_window_size=self.remote_settings.initial_window_size,
        )
        stream.max_outbound_frame_size = self.max_outbound_frame_size
        machine = stream.state_machine
        machine.state = StreamState.HALF_CLOSED_REMOTE if ends else StreamState.OPEN
        stream._expected_content_length = plain.length
        machine.client = False
        machine.headers_received = True
        self.streams[number] = stream
        self.highest_inbound_stream_id = number
        return PlainRequest(number, fields, plain, ends=ends)

    def forget_closed(self) -> None:
        """Drop the closed streams."""
        _ = self.open_inbound_streams  # this property of h2 drops closed streams

    def _receive_headers_frame(self, frame: HeadersFrame) -> Any:
        """Reset a stream that is malformed or exceeds the limit, but continue with other streams.

        See RFC 9113 sections 8.1.1 and 5.1.2. The stream's headers are decoded, because the state
        of HPACK depends on them.
        """
        number, limit = frame.stream_id, self._max_streams
        known = self.streams.get(number)
        refuses = (
            known is None and len(self.streams) >= limit and self.open_inbound_streams >= limit
        )
        # h2 compares the Content-Length of a request with its DATA frames only. When trailers
        # arrive, h2 sets the expected length to None.
        length = None if known is None else known._expected_content_length
        try:
            frames, events = super()._receive_headers_frame(frame)
            stream = self.streams.get(number)
            if stream is not None and "END_STREAM" in frame.flags:
                length = stream._expected_content_length if known is None else length
                if length is not None and length != stream._actual_content_length:
                    raise InvalidBodyLengthError(length, stream._actual_content_length)
        except ProtocolError as error:
            # Some errors end the connection: headers that cannot be decoded, and a frame that the
            # stream's state does not allow. In the second case h2 has closed the stream.
            if isinstance(error.__cause__, HPACKError) or not self.is_open(number):
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
        """Ignore unknown settings (RFC 9113 section 6.5.2). h2 would store and report each one."""
        settings = frame.settings
        for code in settings.keys() - _KNOWN_SETTINGS:
            del settings[code]
        table = SettingCodes.HEADER_TABLE_SIZE
        if table in settings:
            settings[table] = min(settings[table], TABLE_BYTES)
        received = super()._receive_settings_frame(frame)
        self.remote_settings.shrink()
        return received

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> Any:
        """Continue with open streams (RFC 9113 section 6.8). h2 would send nothing more."""
        if frame.error_code:
            return super()._receive_goaway_frame(frame)
        event = ConnectionTerminated()
        event.error_code = ErrorCodes.NO_ERROR
        event.last_stream_id = frame.last_stream_id
        return [], [event]


def _priority_update(frame: ExtensionFrame) -> PriorityUpdate:
    """Return the event for a PRIORITY_UPDATE frame.

    :raises h2.exceptions.ProtocolError: if the frame is malformed.
    """
    number = int.from_bytes(frame.body[:4], "big") & ALL_STREAMS
    if frame.stream_id or len(frame.body) < 4 or not number & 1:
        raise ProtocolError("a PRIORITY_UPDATE frame is malformed")
    return PriorityUpdate(number, frame.body[4:].decode("latin-1"))


def goaway(last_stream: int) -> bytes:
    """Return a GOAWAY frame that does not end the connection. h2's own method would end it."""
    return bytes(GoAwayFrame(0, last_stream_id=last_stream).serialize())
