"""The servers and frameworks that our code works with: tested versions, and the names that we use.

This table is the only place for versions and names. The checks at start, the bounds in
pyproject.toml, the page docs/project/compatibility.md and the tests are made from this table or
compared with it.

A name is written as our code uses it. `parse_headers(data, from_trailer=)` is called, or replaced,
with one positional argument and one keyword. A name with a leading underscore is private to its
package. tests/test_host_table.py counts the private names.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from types import FunctionType
from typing import Any

from .errors import WSGIFastError

_NAME = re.compile(r"(\w+)(?:\((.*?)\))?(?:\s|$)")


@dataclass(frozen=True)
class Host:
    """A server, a framework or another package whose internals our code uses.

    :ivar name: the name of the package, and of its main module.
    :ivar oldest: the oldest version that the extras allow.
    :ivar tested: the versions that are tested, in order.
    :ivar below: the first version that the extras do not allow.
    :ivar used: the used names, by our part that uses them, and then by place. A place is a module,
        or `module:Class`.
    """

    name: str
    oldest: str
    tested: tuple[str, ...]
    below: str
    used: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def newest(self) -> str:
        """The newest tested version."""
        return self.tested[-1]

    def names(self, *parts: str) -> Iterator[tuple[str, str, str | None]]:
        """Yield the place, the name and the arguments of each used name. Attributes have None.

        :param parts: the parts of our code. The default is all.
        """
        for part in parts or self.used:
            for place, names in self.used[part].items():
                for match in _NAME.finditer(names):
                    yield place, match[1], match[2]

    def missing(self, *parts: str) -> list[str]:
        """Return the names that the installed version lacks, such as "Request.body (module)".

        This imports the modules of the package.
        """
        return [
            _shown(place, name, arguments)
            for place, name, arguments in self.names(*parts)
            if not _has(place, name, arguments)
        ]

    def check(self, user: str, *parts: str, way_out: str) -> None:
        """Check that the installed version has all names that our parts use.

        :param user: what uses these names, for the error message.
        :raises UnsupportedHost: with the missing names.
        """
        if missing := self.missing(*parts):
            raise UnsupportedHost(f"{self.lacks(missing)}, which {user} uses: {way_out}")

    @contextmanager
    def needed(self, user: str, *parts: str, way_out: str) -> Iterator[None]:
        """Call :meth:`check` before the block, which imports names of the package."""
        self.check(user, *parts, way_out=way_out)
        yield

    def lacks(self, missing: Sequence[str]) -> str:
        """Return a sentence about missing names, such as "h2 4.5 has no H2Stream.closed"."""
        from importlib.metadata import version  # slow to import

        return f"{self.name} {version(self.name)} has no {', '.join(missing)}"


class UnsupportedHost(WSGIFastError, ImportError):
    """An installed package does not have a name that our code uses."""


def numbers(version: str) -> tuple[int, ...]:
    """Return the three numbers of a version, to compare two versions."""
    found = [int(number) for number in re.findall(r"\d+", version)[:3]]
    return (*found, *[0] * (3 - len(found)))


def _shown(place: str, name: str, arguments: str | None) -> str:
    module, _, kind = place.partition(":")
    called = "" if arguments is None else f"({arguments})"
    return f"{kind}.{name}{called} ({module})" if kind else f"{module}.{name}{called}"


def _has(place: str, name: str, arguments: str | None) -> bool:
    module, _, kind = place.partition(":")
    try:
        owner: Any = import_module(module)
    except ModuleNotFoundError:
        return False
    if kind:
        owner = getattr(owner, kind, None)
    found = getattr(owner, name, None)
    if arguments is not None:
        return callable(found) and _takes(owner, found, arguments)
    return hasattr(owner, name) or (isinstance(owner, type) and name in _attributes(owner))


@cache
def _attributes(kind: type) -> frozenset[str]:
    """Return all names in the methods of a class, which include its attributes."""
    return frozenset(
        name
        for base in kind.__mro__
        for method in vars(base).values()
        if isinstance(method, FunctionType)
        for name in method.__code__.co_names
    )


def _takes(owner: object, function: Callable[..., object], arguments: str) -> bool:
    words = [word.strip() for word in arguments.split(",") if word.strip()]
    positional = [word for word in words if not word.endswith("=")]
    keywords = {word.removesuffix("="): None for word in words if word.endswith("=")}
    if isinstance(owner, type) and isinstance(function, FunctionType):
        positional.insert(0, "self")
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function in C without a known signature
        return True
    try:
        signature.bind(*positional, **keywords)
    except TypeError:
        return False
    return True


GUNICORN = Host(
    "gunicorn",
    # The first version with a choice of parsers, HTTP/2 without TLS and the present header checks.
    oldest="26.2.0",
    # httptools is used only with these versions. The parser of another version may reject more
    # requests than these do, and httptools would still accept them.
    tested=("26.2.0", "27.0.0", "27.0.1"),
    below="28",
    used={
        "FastWorker": {
            "gunicorn": "SERVER SERVER_SOFTWARE __version__",
            "gunicorn.arbiter:Arbiter": (
                "SIG_QUEUE WORKERS cfg kill_worker(pid, sig) log manage_workers() master_pid "
                "num_workers reap_workers() reexec_pid reload() spawn_worker() spawn_workers() "
                "stop(graceful) worker_age worker_class"
            ),
            "gunicorn.config:Config": "forwarded_allow_networks() is_ssl set(name, value) settings",
            "gunicorn.config:PreRequest": "default",
            "gunicorn.config:PostRequest": "default",
            "gunicorn.config:WhenReady": "default",
            "gunicorn.errors": "AppImportError HaltServer",
            "gunicorn.glogging": "SafeAtoms(atoms)",
            "gunicorn.glogging:Logger": (
                "access(resp, req, environ, seconds) access_fmt access_log "
                "atoms(resp, req, environ, seconds) debug error_log"
            ),
            "gunicorn.http": "get_parser(cfg, source, address)",
            "gunicorn.http.body": "ChunkedReader",
            "gunicorn.http.body:Body": "reader",
            "gunicorn.http.body:ChunkedReader": "req",
            "gunicorn.http.body:LengthReader": "length",
            "gunicorn.http.errors": "InvalidH2CPreface InvalidProxyHeader",
            "gunicorn.http.message": (
                "DEFAULT_MAX_HEADERFIELD_SIZE MAX_HEADERS MAX_REQUEST_LINE Request(cfg, unreader, "
                "address, number)"
            ),
            "gunicorn.http.message:Request": (
                "body cfg headers method must_close "
                "parse_headers(data, from_trailer=) path proxy_protocol_info query req_number "
                "scheme should_close() trailers unreader uri version"
            ),
            "gunicorn.http.wsgi": "FileWrapper WSGIErrorsWrapper(cfg) proxy_environ(req)",
            "gunicorn.http2.negotiation": (
                "H2C_PREFACE MATCH MISMATCH PARTIAL mismatch_is_error(cfg) preface_match(data) "
                "prior_knowledge_allowed(cfg, address)"
            ),
            "gunicorn.sock": "ssl_context(cfg)",
            "gunicorn.uwsgi.errors": "InvalidUWSGIHeader UnsupportedModifier",
            "gunicorn.workers.gthread:ThreadWorker": (
                "age alive cfg check_config(cfg, log) handle_error(req, client, address, error) "
                "handle_exit(sig, frame) handle_quit(sig, frame) init_process() init_signals() "
                "is_parent_alive() load_wsgi() log max_requests notify() nr ppid sockets "
                "tmp wsgi"
            ),
        },
        "FastUvicornWorker": {
            "gunicorn.arbiter:Arbiter": "master_pid reexec_pid stop(graceful)",
        },
        "JSONLogger": {
            "gunicorn.config:Config": "forwarded_allow_networks()",
            "gunicorn.glogging:Logger": (
                "access(resp, req, environ, seconds) atoms(resp, req, environ, seconds) setup(cfg)"
            ),
            "gunicorn.instrument.statsd": "Statsd",
        },
    },
)

_CYCLE = (
    "body disconnected flow message_event more_body on_response receive() response_complete "
    "response_started scope send(message) transport"
)
_FLOW = "drain() pause_reading() read_paused resume_reading() write_paused"
_PROTOCOL = (
    "connection_lost(exc) connection_made(transport) eof_received() resume_writing() shutdown() "
    "timeout_keep_alive_handler() "
)
_HTTP = "uvicorn.protocols.http"
UVICORN = Host(
    "uvicorn",
    oldest="0.38.0",
    tested=("0.38.0", "0.54.0"),
    below="0.55",
    used={
        "receiving": {
            "uvicorn.config:Config": (
                "forwarded_allow_ips http_protocol_class limit_concurrency loaded_app "
                "proxy_headers root_path"
            ),
            "uvicorn.middleware.proxy_headers:ProxyHeadersMiddleware": "trusted_hosts",
            f"{_HTTP}.flow_control": "HIGH_WATER_LIMIT service_unavailable(scope, receive, send)",
            "uvicorn.server:Server": (
                "_captured_signals config main_loop() on_tick(counter) server_state should_exit "
                "startup(sockets)"
            ),
        },
        "supervisor": {
            "uvicorn.supervisors.multiprocess:Process": (
                "is_ready() process server target(sockets) terminate()"
            ),
            "uvicorn.supervisors.multiprocess:Multiprocess": (
                "keep_subprocess_alive() processes restart_all() should_exit terminate_all()"
            ),
        },
        "h11": {
            f"{_HTTP}.h11_impl:RequestResponseCycle": f"{_CYCLE} conn",
            f"{_HTTP}.h11_impl:FlowControl": _FLOW,
            f"{_HTTP}.h11_impl:H11Protocol": f"{_PROTOCOL} conn handle_websocket_upgrade(event)",
        },
        "httptools": {
            f"{_HTTP}.httptools_impl:RequestResponseCycle": (
                f"{_CYCLE} chunked_encoding expected_content_length"
            ),
            f"{_HTTP}.httptools_impl:FlowControl": _FLOW,
            f"{_HTTP}.httptools_impl:HttpToolsProtocol": (
                f"{_PROTOCOL} _should_upgrade() handle_websocket_upgrade() headers on_body(body) "
                "on_header(name, value) on_headers_complete() on_message_begin() "
                "on_message_complete() on_url(url) parser pipeline scope send_400_response(msg) "
                "url ws_protocol_class"
            ),
        },
        "zttp": {
            f"{_HTTP}.zttp_impl:RequestResponseCycle": (
                f"{_CYCLE} chunked_encoding conn expected_content_length"
            ),
            f"{_HTTP}.zttp_impl:FlowControl": _FLOW,
            f"{_HTTP}.zttp_impl:ZttpProtocol": (
                f"{_PROTOCOL} handle_websocket_upgrade(event) send_400_response(msg)"
            ),
            f"{_HTTP}.zttp_h2_impl:RequestResponseCycle": (
                f"{_CYCLE} abort_stream() conn expected_content_length resume_reading stream"
            ),
            f"{_HTTP}.zttp_h2_impl:FlowControl": _FLOW,
            f"{_HTTP}.zttp_h2_impl:ZttpH2Protocol": (
                f"{_PROTOCOL} conn cycles flush() handle_request(event) "
                "handle_rst_stream(event) on_stream_closed()"
            ),
            f"{_HTTP}.auto_zttp_impl:AutoZttpProtocol": (
                "_switch(http2, data) buffer connections timeout_task"
            ),
            "uvicorn.protocols.utils": "get_remote_addr(transport)",
        },
    },
)
# The first uvicorn with zttp.
WITH_ZTTP = "0.54.0"

H2 = Host(
    "h2",
    oldest="4.4.1",
    tested=("4.4.1",),
    below="5",
    used={
        "HTTP/2": {
            "h2.errors": "ErrorCodes",
            "h2.exceptions": (
                "DenialOfServiceError FrameTooLargeError InvalidBodyLengthError ProtocolError "
                "StreamClosedError"
            ),
            "h2.config": "H2Configuration(client_side=, header_encoding=)",
            "h2.connection:H2Connection": (
                "_receive_data_frame(frame) _receive_frame(frame) _receive_goaway_frame(frame) "
                "_receive_headers_frame(frame) _receive_settings_frame(frame) "
                "acknowledge_received_data(size, stream) close_connection(code) data_to_send() "
                "decoder encoder incoming_buffer initiate_connection() local_settings "
                "max_inbound_frame_size max_outbound_frame_size open_inbound_streams "
                "outbound_flow_control_window receive_data(data) remote_settings "
                "reset_stream(number, code) state_machine streams update_settings(values)"
            ),
            "h2.connection:ConnectionInputs": "SEND_DATA",
            "h2.connection:ConnectionState": "SERVER_OPEN",
            "h2.events": (
                "ConnectionTerminated DataReceived Event RemoteSettingsChanged RequestReceived "
                "StreamEnded StreamReset TrailersReceived WindowUpdated"
            ),
            "h2.frame_buffer:FrameBuffer": "_data _headers_buffer",
            "h2.settings": "SettingCodes",
            "h2.settings:Settings": "_settings",
            "h2.stream:H2Stream": (
                "_actual_content_length _expected_content_length closed "
                "outbound_flow_control_window state_machine"
            ),
            "h2.stream:H2StreamStateMachine": (
                "client headers_received headers_sent state stream_closed_by"
            ),
            "h2.stream:StreamClosedBy": "SEND_END_STREAM",
            "h2.stream:StreamInputs": "SEND_DATA SEND_END_STREAM",
            "h2.stream:StreamState": "CLOSED HALF_CLOSED_REMOTE OPEN",
            "hpack": (
                "HPACKDecodingError HPACKError HeaderTuple InvalidTableIndex InvalidTableSizeError "
                "OversizedHeaderListError"
            ),
            "hpack.hpack": "encode_integer(value, bits)",
            "hpack.huffman:HuffmanEncoder": "encode(text)",
            "hpack.huffman_constants": "REQUEST_CODES REQUEST_CODES_LENGTH",
            "hpack.huffman_table": "decode_huffman(text)",
            "hpack.table:HeaderTable": (
                "STATIC_TABLE add(name, value) dynamic_entries get_by_index(index) maxsize"
            ),
            "hyperframe.frame": (
                "DataFrame ExtensionFrame Frame GoAwayFrame HeadersFrame SettingsFrame "
                "WindowUpdateFrame"
            ),
        }
    },
)

STARLETTE = Host(
    "starlette",
    oldest="0.49.0",
    tested=("1.10.0",),
    below="2",
    used={
        "FileResponse": {
            "starlette.responses:FileResponse": "background path raw_headers status_code",
        }
    },
)
DJANGO = Host(
    "django",
    oldest="4.2",
    tested=("4.2", "5.2"),
    below="7",
    used={
        "wsgifast.django": {
            "django.contrib.staticfiles.finders": "find(path)",
            "django.contrib.staticfiles.storage": (
                "ManifestStaticFilesStorage StaticFilesStorage staticfiles_storage"
            ),
            "django.http": "FileResponse HttpResponse StreamingHttpResponse",
        },
        "WSGIFast": {
            "django.http.response:HttpResponseBase": "_resource_closers",
            "django.http.response:StreamingHttpResponse": "_iterator",
        },
    },
)
LOCUST = Host(
    "locust",
    oldest="2.30.0",
    tested=("2.47.0",),
    below="3",
    used={
        "bench": {
            "locust": "FastHttpUser constant runners task",
            "locust.env": "Environment",
            "locust.exception": "StopUser",
            "locust.log": "setup_logging",
        }
    },
)

HOSTS = {host.name: host for host in (GUNICORN, UVICORN, H2, STARLETTE, DJANGO, LOCUST)}
