"""The options of FastWorker and of asgifast's protocols, each declared once.

FastWorker, asgifast's protocols, `wsgifast run` and the tables of the documentation use these rows.
To add an option:

1. Add a row. FastWorker then has an attribute and a setting of that name.
2. If FastWorker's core uses it, add a field of the same name to
   :class:`wsgifast.server.options.Options`.
3. If asgifast's protocols have it too (`is_shared`), add it to `ServerOptions` and `Served` of
   asgifast/uvicorn/server.py, or to `OperatorOptions`.
4. Run `make docs`.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from functools import partial
from threading import TIMEOUT_MAX
from typing import Any, Final, NamedTuple

from .checks import is_count, is_number
from .errors import ConfigurationError

# The least average rate of request bodies and responses. Apache's mod_reqtimeout has the same
# default (MinRate). Slower clients are disconnected.
MIN_BYTES_PER_S = 500.0


def _number(text: str) -> float:
    return int(text) if text.isascii() and text.isdigit() else float(text)


class Kind(NamedTuple):
    """The values that an option may have.

    :param type: the text in the documentation.
    :param expected: the text in error messages.
    :param is_allowed: returns whether an option may have a value.
    :param metavar: the text for the value in the help of the command line.
    :param parse: returns a value from its text. It raises ValueError for an invalid text.
    :param is_repeated: whether the command line may contain the option several times.
    """

    type: str
    expected: str
    is_allowed: Callable[[Any], bool]
    metavar: str = "NUMBER"
    parse: Callable[[str], Any] = _number
    is_repeated: bool = False


class AtLimit(NamedTuple):
    """What happens when a limit is reached.

    :param client: the response or event for the client.
    :param log: the beginning of the line in the error log. "" for no line.
    :param metric: the metric that counts the event. "" for no metric.
    """

    client: str
    log: str
    metric: str


class Option(NamedTuple):
    """An option, which is a class attribute of FastWorker.

    :param default: FastWorker's default.
    :param section: the section in the documentation: "requests", "responses", "workers",
        "operators" or "metrics".
    :param help: the text for the documentation, in Markdown, and for the command line.
    :param note: an additional note about FastWorker.
    :param at_limit: what happens at the limit, if the option is a limit.
    :param is_shared: whether asgifast's protocols have the option too. An environment variable and
        an option of `wsgifast run` can then set it.
    :param asgi_default: the default of asgifast's protocols, if it differs.
    :param asgi_note: an additional note about asgifast's protocols.
    """

    name: str
    default: Any
    kind: Kind
    section: str
    help: str
    note: str = ""
    at_limit: AtLimit | None = None
    is_shared: bool = False
    asgi_default: Any = ...
    asgi_note: str = ""

    @property
    def variable(self) -> str:
        """The environment variable of a shared option. It takes precedence over the attribute."""
        return f"WSGIFAST_{self.name.upper()}"

    @property
    def default_of_asgi(self) -> Any:
        """The default of asgifast's protocols."""
        return self.default if self.asgi_default is ... else self.asgi_default

    def parse(self, text: str) -> Any:
        """Return the value of the option from its text.

        :raises ConfigurationError: if the value is not allowed.
        """
        try:
            value = self.kind.parse(text)
        except ValueError:
            value = math.nan
        if not self.kind.is_allowed(value):
            raise ConfigurationError(f"{text!r}: expected {self.kind.expected}")
        return value


def _is_path(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"/[!-\"$->@-~]*", value) is not None


FLAG = Kind("bool", "True or False", lambda value: isinstance(value, bool))
BYTES = Kind("int", "bytes, 0 or more", is_count, "BYTES")
SOME_BYTES = Kind("int", "bytes, 1 or more", partial(is_count, least=1), "BYTES")
MEMORY = Kind(
    "number",
    "bytes above 0, math.inf for no limit",
    partial(is_number, least=1, most=math.inf),
    "BYTES",
)
SECONDS = Kind(
    "seconds",
    "seconds above 0",
    lambda value: is_number(value, least=0, most=math.inf) and value > 0,
    "SECONDS",
)
SECONDS_OR_NONE = Kind(
    "seconds", "seconds, 0 or more", partial(is_number, least=0, most=TIMEOUT_MAX), "SECONDS"
)
PATH = Kind(
    "str or None",
    "a path such as /livez, without query, or None",
    lambda value: value is None or _is_path(value),
    "PATH",
    str,
)
PATHS = Kind(
    "list",
    "a list of paths such as /livez, without query",
    lambda value: isinstance(value, (list, tuple, set)) and all(map(_is_path, value)),
    "PATH",
    str.split,
    is_repeated=True,
)
CONNECTIONS = Kind(
    "number",
    "a number of connections, 1 or more; math.inf for any number",
    lambda value: is_count(value, least=1) or value == math.inf,
)
# metrics/setup.py checks the host and the port.
ADDRESS = Kind("str or None", "an address", lambda value: True, "HOST:PORT")

# The beginnings of lines in the error log.
_INVALID = "Invalid request from"
_NOT_SERVED = "A request from ... is not served"
_REPLACED = "Autorestarting worker"


def _refused(status: int, log: str = "") -> AtLimit:
    metric = f'wsgifast_requests_refused_total{{status="{status}"}}'
    return AtLimit(f"a response with {status}", log, metric)


def _too_slow(client: str, kind: str) -> AtLimit:
    return AtLimit(client, "", f'wsgifast_timeouts_total{{kind="{kind}"}}')


_ROWS = (
    # Requests
    Option(
        "buffer_bodies", True, FLAG, "requests",
        "Receive the whole body of a request before the app is called, so that slow uploads do "
        "not occupy threads.",
        note="With `False`, the app's thread reads the body from the client, as on gthread.",
    ),
    Option(
        "body_limit_bytes", 2**30, BYTES, "requests",
        "Respond with 413 to a request whose body is longer than this number of bytes.",
        note="The option has no effect with `buffer_bodies = False`.",
        at_limit=_refused(413),
        is_shared=True,
        asgi_default=None,
        asgi_note="If the request has a Content-Length, the app is not called. `None`: no limit.",
    ),
    Option(
        "bodies_on_disk_bytes", 16 * 2**30, BYTES, "requests",
        "Limit for the total size of the temporary files in which a worker stores request bodies. "
        "If a body would exceed the limit, or if the disk is full, the client gets 503.",
        at_limit=_refused(503, _NOT_SERVED),
    ),
    Option(
        "head_limit_bytes", 64 * 2**10, SOME_BYTES, "requests",
        "Respond with 431 if the request line and the headers together have more bytes.",
        note="gunicorn's `limit_request_line`, `limit_request_fields` and "
        "`limit_request_field_size` apply, too.",
        at_limit=_refused(431, _INVALID),
        is_shared=True,
        asgi_note="The parser h11 also has a limit of its own: 16 KiB by default. uvicorn's "
        "option `--h11-max-incomplete-event-size` changes it.",
    ),
    Option(
        "input_memory_bytes", 64 * 2**20, BYTES, "requests",
        "Limit for the memory in which a worker stores incomplete requests, and requests that wait "
        "for a thread. Beyond the limit, FastWorker writes bodies to temporary files. If the "
        "headers of a request have more than 4 KiB and would exceed the limit, the client gets "
        "503.",
        at_limit=_refused(503, _NOT_SERVED),
    ),
    Option(
        "head_timeout_s", 20.0, SECONDS, "requests",
        "Respond with 408 if a client takes longer to send the headers of a request. The time "
        "begins with the first byte of the headers. If a client opens a connection and sends no "
        "byte for this time, the connection is closed.",
        at_limit=_too_slow("a response with 408", "head"),
        is_shared=True,
    ),
    Option(
        "body_timeout_s", 30.0, SECONDS, "requests",
        "Respond with 408 if no byte of a request body arrives for this time. An upload that "
        f"takes longer than this time must also have at least {MIN_BYTES_PER_S:.0f} bytes/s on "
        "average.",
        at_limit=_too_slow("a response with 408", "body"),
        is_shared=True,
        asgi_default=math.inf,
        asgi_note="Only the time during which the app waits for the body counts.",
    ),
    Option(
        "check_host", True, FLAG, "requests",
        "Refuse a request with 400 if its Host header is missing (HTTP/1.1 and later), malformed "
        "or repeated (RFC 9112, section 3.2).",
        at_limit=_refused(400, _INVALID),
    ),
    Option(
        "connections_per_address", math.inf, CONNECTIONS, "requests",
        "Limit for the open connections from one client address to a worker. The worker closes "
        "further connections at once. For trusted proxies there is no limit.",
        at_limit=AtLimit(
            "a closed connection", "... has ... connections: further ones are closed",
            "wsgifast_connections_refused_total",
        ),
        is_shared=True,
    ),
    # Responses
    Option(
        "send_timeout_s", 60.0, SECONDS, "responses",
        "Disconnect a client that accepts no byte of a response for this time. If a response "
        "takes longer than this time, its client must also accept at least "
        f"{MIN_BYTES_PER_S:.0f} bytes/s on average.",
        at_limit=_too_slow("a closed connection, or a reset HTTP/2 stream", "send"),
    ),
    Option(
        "output_memory_bytes", 64 * 2**20, BYTES, "responses",
        "Limit for the memory in which output of a worker waits for slow clients. When it is used "
        "up, further output waits in temporary files.",
        at_limit=AtLimit(
            "the whole response", "Slow clients leave more than ... bytes waiting in memory",
            "wsgifast_output_spooled_bytes",
        ),
    ),
    Option(
        "responses_on_disk_bytes", 16 * 2**30, BYTES, "responses",
        "Limit for the temporary files in which output of a worker waits for slow clients. When it "
        "is used up, further output waits in memory, even beyond `output_memory_bytes`.",
        at_limit=AtLimit(
            "the whole response", "Output stays in memory", "wsgifast_output_spooled_bytes"
        ),
    ),
    # Replacing workers
    Option(
        "kill_stuck_after_s", math.inf, SECONDS, "workers",
        "End a worker if none of its threads finishes a request for this time. gunicorn's "
        "arbiter (its main process) then starts another worker. A thread with an endless stream "
        "counts as stuck.",
        at_limit=AtLimit(
            "a closed connection", "All threads are stuck for ... s",
            'wsgifast_worker_ends_total{reason="stuck"}',
        ),
    ),
    Option(
        "end_old_worker_first", False, FLAG, "workers",
        "When a worker is replaced, end the old worker before the new worker starts. Until the "
        "new worker is ready, there is one worker fewer. If there is only one worker, requests "
        "wait.",
    ),
    Option(
        "max_rss_bytes", math.inf, MEMORY, "workers",
        "Replace a worker that uses more resident memory (RSS) than this. Memory that it shares "
        "with other processes counts, too.",
        at_limit=AtLimit(
            "the whole response", _REPLACED, 'wsgifast_worker_ends_total{reason="max_rss_bytes"}'
        ),
    ),
    Option(
        "max_lifetime_s", math.inf, SECONDS, "workers",
        "Replace a worker after this time. FastWorker shortens the time of each worker by a random "
        "part of up to a tenth, so that not all workers are replaced at once.",
        at_limit=AtLimit(
            "the whole response", _REPLACED, 'wsgifast_worker_ends_total{reason="max_lifetime_s"}'
        ),
    ),
    # Operators
    Option(
        "health_path", None, PATH, "operators",
        "Respond to GET and HEAD at this path with 200, without calling the app.",
        note="The response does not need a thread.",
        is_shared=True,
    ),
    Option(
        "ready_path", None, PATH, "operators",
        "Respond to GET and HEAD at this path with 200 if the worker is ready, otherwise with "
        "503. After SIGTERM the response is always 503.",
        is_shared=True,
    ),
    Option(
        "access_log_skip", (), PATHS, "operators",
        "Do not write requests for these paths to the access log. Requests for `health_path` and "
        "`ready_path` are never written to it.",
        note="In the environment variable, separate paths by spaces.",
        asgi_note="In the environment variable, separate paths by spaces.",
        is_shared=True,
    ),
    Option(
        "drain_delay_s", 0, SECONDS_OR_NONE, "operators",
        "After SIGTERM, continue to serve for this time, while `ready_path` responds with 503. "
        "Then the server stops.",
        is_shared=True,
    ),
    Option(
        "queue_timeout_s", math.inf, SECONDS, "operators",
        "Respond with 503 and Retry-After to a request that waits longer than this for the app. "
        "The wait begins when the request arrives. If a trusted proxy sends X-Request-Start, it "
        "begins at the time in this header.",
        note="The wait ends when a thread starts to process the request.",
        asgi_note="The wait ends when the app is called. The option does not apply to WebSockets.",
        at_limit=AtLimit(
            "a response with 503", "Requests have waited longer than queue_timeout_s",
            'wsgifast_requests_shed_total{reason="queue_timeout"}',
        ),
        is_shared=True,
    ),
    Option(
        "request_timeout_s", math.inf, SECONDS, "operators",
        "Respond with 503 if the app takes longer than this for a request. If the response has "
        "begun, close the connection instead. The error log shows the stack of the app.",
        note="If the requests in all threads of a worker take longer, the worker is replaced.",
        asgi_note="The task of the app is cancelled. The time during which the app waits for its "
        "client does not count. The time after the response does not count.",
        at_limit=AtLimit(
            "a response with 503, or a closed connection",
            "... has taken longer than request_timeout_s", "wsgifast_request_timeouts_total",
        ),
        is_shared=True,
    ),
    # Metrics
    Option(
        "metrics_bind", None, ADDRESS, "metrics",
        "Serve the [metrics](metrics.md) of all workers at this address, such as "
        '`"127.0.0.1:9100"`. `WSGIFAST_METRICS` takes precedence.',
    ),
)  # fmt: skip

OPTIONS: Final = {option.name: option for option in _ROWS}
# The options that asgifast's protocols have too. Environment variables and `wsgifast run` set them.
SHARED: Final = {name: option for name, option in OPTIONS.items() if option.is_shared}


def check_probe_paths(health_path: str | None, ready_path: str | None) -> None:
    """Check that the health checks have different paths.

    :raises ConfigurationError: if both paths are equal.
    """
    if health_path is not None and health_path == ready_path:
        raise ConfigurationError(
            f"health_path and ready_path are both {health_path!r}: set different paths"
        )


def options_of_environment() -> dict[str, Any]:
    """Return the options that environment variables set.

    :raises ConfigurationError: if a value is not allowed.
    """
    found = {}
    for name, option in SHARED.items():
        if text := os.environ.get(option.variable):
            try:
                found[name] = option.parse(text)
            except ConfigurationError as error:
                raise ConfigurationError(f"{option.variable}={error}") from None
    return found
