"""The h2 library's connection, adapted: bytes in, events out, and the other way round.

Sans I/O: no socket, thread or clock. The caller holds the connection's lock.
"""

from __future__ import annotations

import struct
from typing import Any

from h2.config import H2Configuration
from h2.connection import ConnectionInputs, H2Connection
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated, Event
from h2.exceptions import DenialOfServiceError, FlowControlError, FrameTooLargeError
from h2.settings import SettingCodes, Settings
from h2.stream import StreamInputs
from hyperframe.frame import GoAwayFrame, HeadersFrame

from ..options import HTTP2Options

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
    """A request exceeded MAX_CONCURRENT_STREAMS and has been reset."""


class Frames(H2Connection):
    """h2's connection, which refuses single streams and survives a client's GOAWAY."""

    remote_settings: _SmallSettings

    # Closed streams that h2 remembers, because late frames may still arrive; 100 bytes each.
    MAX_CLOSED_STREAMS = 64

    def __init__(self, options: HTTP2Options) -> None:
        super().__init__(_CONFIG)
        window = options.initial_window_bytes
        values = {
            SettingCodes.MAX_CONCURRENT_STREAMS: options.max_concurrent_streams,
            SettingCodes.MAX_FRAME_SIZE: options.max_frame_bytes,
            # A smaller one takes effect when the client has acknowledged it.
            SettingCodes.INITIAL_WINDOW_SIZE: max(window, _DEFAULT_WINDOW_BYTES),
        }
        self._header_block_bytes = options.max_header_list_bytes
        if options.max_header_list_bytes:
            values[SettingCodes.MAX_HEADER_LIST_SIZE] = options.max_header_list_bytes
        self._smaller_window = window if window < _DEFAULT_WINDOW_BYTES else None
        self._most_streams = options.max_concurrent_streams
        self._bodies: list[bytes] = []  # framed here; h2's own buffer comes after them
        self.local_settings = _OwnSettings(client=False, initial_values=values)
        self.remote_settings = _SmallSettings(client=True)
        self.max_inbound_frame_size = options.max_frame_bytes
        self.decoder.max_header_list_size = options.max_header_list_bytes or 2**31

    def begin(self, upgrade: bytes | None = None) -> None:
        """Send the server's settings.

        :param upgrade: the client's HTTP2-Settings of an upgrade; stream 1 is then open.
        """
        if upgrade is None:
            self.initiate_connection()
        else:
            self.initiate_upgrade_connection(upgrade)
        if self._smaller_window is not None:
            self.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: self._smaller_window})

    def take(self, data: bytes) -> list[Any]:
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
        block = self.incoming_buffer._headers_buffer
        limit = self._header_block_bytes
        if limit and block and sum(len(frame.data) for frame in block) > limit:
            self.refuse_more()
            raise DenialOfServiceError("a header block that is too long")
        return events

    def send_body(self, number: int, data: bytes | memoryview, *, end_stream: bool) -> int:
        """Frame a part of a stream's body, which may be empty; its bytes are copied once.

        Does what h2's send_data() would do for each frame, which takes several times as long as
        encrypting it.

        :param end_stream: set END_STREAM on the last frame.
        :returns: the number of frames.
        :raises h2.exceptions.ProtocolError: if it exceeds a window, or the stream's state does not
            allow it.
        """
        size = len(data)
        if size > min(self.window, self.stream_window(number)):
            raise FlowControlError(f"{size} bytes are more than the windows of stream {number}")
        stream = self._get_stream_by_id(number)
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
        if self._data_to_send:
            self._bodies.append(super().data_to_send())
        self._bodies.append(b"".join(parts))
        self.outbound_flow_control_window -= size
        stream.outbound_flow_control_window -= size
        return len(parts) // 2

    def data_to_send(self, amount: int | None = None) -> bytes:
        """Return everything framed since the last call."""
        bodies = self._bodies
        if not bodies:
            return super().data_to_send(amount)
        self._bodies = []
        if self._data_to_send:
            bodies.append(super().data_to_send())
        return bodies[0] if len(bodies) == 1 else b"".join(bodies)

    def forget_settings(self) -> None:
        """Drop the client's settings that are unknown, and h2's deques of the others."""
        unknown = [code for code in self.remote_settings if code not in _KNOWN_SETTINGS]
        for code in unknown:
            del self.remote_settings[code]
        self.remote_settings.shrink()

    def refuse_more(self) -> None:
        """End the connection with ENHANCE_YOUR_CALM (RFC 9113 section 7)."""
        self.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)

    @property
    def window(self) -> int:
        """The connection's flow-control window."""
        return self.outbound_flow_control_window

    def stream_window(self, stream: int) -> int:
        """Return a stream's flow-control window, which may be negative; 0 if it is closed."""
        known = self.streams.get(stream)
        return 0 if known is None else known.outbound_flow_control_window

    def is_open(self, stream: int) -> bool:
        """Whether anything can still be sent on a stream, a reset included."""
        known = self.streams.get(stream)
        return known is not None and not known.closed

    def _receive_headers_frame(self, frame: HeadersFrame) -> Any:
        """Refuse a stream beyond the limit, and only that one (RFC 9113 section 5.1.2).

        Its headers are decoded all the same, because HPACK's state depends on them.
        """
        number, most = frame.stream_id, self._most_streams
        refuses = (
            len(self.streams) >= most
            and number not in self.streams
            and self.open_inbound_streams >= most
        )
        frames, events = super()._receive_headers_frame(frame)
        if not refuses:
            return frames, events
        self.reset_stream(number, ErrorCodes.REFUSED_STREAM)
        return frames, [StreamRefused()]

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
