"""The catalogue of all metrics: their names, meanings and labels.

If OpenTelemetry's semantic conventions define a metric, it has the name of the conventions, in
Prometheus's spelling: `http.server.request.duration` in seconds is
`http_server_request_duration_seconds`. Other names begin with `wsgifast`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from ..compression.codings import PRECOMPRESSED_SUFFIXES

Kind = Literal["counter", "gauge", "histogram"]
# How the gauges of several workers are combined: the sum, the maximum, or one value for each `pid`.
Across = Literal["sum", "max", "each"]
# The reporters of metrics. middleware: WSGIFast and ASGIFast. worker: FastWorker. protocol:
# asgifast's protocols and workers.
Reporter = Literal["middleware", "worker", "protocol"]


class Metric(NamedTuple):
    """One metric.

    :ivar name: in Prometheus's spelling, with its unit, and `_total` for a counter.
    :ivar unit: in OpenTelemetry's spelling (UCUM): "s", "By" for bytes, or the counted object in
        braces.
    :ivar labels: in Prometheus's spelling. :data:`ATTRIBUTES` has OpenTelemetry's names.
    :ivar bounds: the inclusive upper bounds of a histogram's buckets, without infinity.
    :ivar known: all values of the only label. All of them are reported from the start. If a value
        first appeared with its first event, PromQL's increase() would be 0, and no alert would
        fire.
    """

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    help: str
    across: Across = "sum"
    bounds: tuple[float, ...] = ()
    known: tuple[str, ...] = ()
    reported_by: tuple[Reporter, ...] = ()

    @property
    def opentelemetry_name(self) -> str:
        """OpenTelemetry's spelling of the name: without unit and kind, with dots."""
        name = self.name.removesuffix("_total").removesuffix("_bytes").removesuffix("_seconds")
        if name == "http_server_active_requests":
            return "http.server.active_requests"
        if name.startswith("http_"):
            return name.replace("_", ".")
        return name.replace("wsgifast_", "wsgifast.", 1)


# The names of OpenTelemetry's attributes, by label.
ATTRIBUTES: Final = {
    "http_request_method": "http.request.method",
    "http_response_status_code": "http.response.status_code",
    "http_route": "http.route",
    "url_scheme": "url.scheme",
    "wsgifast_sent_as": "wsgifast.sent_as",
    "coding": "wsgifast.coding",
    "kind": "wsgifast.kind",
    "reason": "wsgifast.reason",
    "state": "wsgifast.state",
    "status": "http.response.status_code",
}

# The field of a request's record for each label.
REQUEST_LABELS: Final = {
    "http_request_method": "method",
    "url_scheme": "scheme",
    "http_response_status_code": "status",
    "http_route": "pattern",
    "wsgifast_sent_as": "sent_as",
}

# Replaces a label's value that is outside a known list, or beyond a limit.
OTHER: Final = "_OTHER"
# The http_route of a request for which the framework has no URL pattern.
UNKNOWN: Final = "unknown"

# The states of a connection. `head` and `body`: it waits for bytes of a request. `running`: the app
# runs, or the request waits for a thread. `closing`: all bytes are sent, and the server waits until
# the client closes the connection.
CONNECTION_STATES: Final = (
    "handshake", "idle", "head", "body", "running", "sending", "closing", "http2",
)  # fmt: skip

# The kinds of timeouts: the part of a connection or request that was late.
_TIMEOUTS = ("handshake", "head", "body", "send", "keepalive")
# The reasons to drop a request that waits for a thread.
_SHED = ("queue_timeout", "client_left")
_CODINGS = tuple(PRECOMPRESSED_SUFFIXES)
_ENDS = ("max_requests", "max_rss_bytes", "max_lifetime_s", "stuck", "failed", "stopped")

# The bounds in OpenTelemetry's conventions, and three smaller bounds for fast responses.
_DURATION_S = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0,
    7.5, 10.0,
)  # fmt: skip
_WAIT_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0)
_SIZE_BYTES = tuple(float(1 << bits) for bits in (10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30))

_REQUEST = ("http_request_method", "url_scheme", "http_response_status_code", "http_route")
# The combinations of reporters.
ANY_SERVER: tuple[Reporter, ...] = ("middleware", "worker")
WORKER: tuple[Reporter, ...] = ("worker",)
SOCKETS: tuple[Reporter, ...] = ("worker", "protocol")

_BY_REPORTER: Mapping[tuple[Reporter, ...], tuple[Metric, ...]] = {
    ANY_SERVER: (
        Metric("http_server_request_duration_seconds", "histogram", "s", _REQUEST,
               "Time from a request's headers to the end of its response. Under FastWorker, the "
               "status 499 means that the client disconnected before its response began.",
               bounds=_DURATION_S),
        Metric("http_server_response_body_size_bytes", "histogram", "By", _REQUEST,
               "Bytes of a response's body.", bounds=_SIZE_BYTES),
        Metric("http_server_active_requests", "gauge", "{request}",
               ("http_request_method", "url_scheme"),
               "Requests whose app was called and whose response has not ended."),
        Metric("wsgifast_responses_total", "counter", "{response}",
               ("wsgifast_sent_as", "http_route"),
               "Responses. The label wsgifast_sent_as says how the body was sent, such as joined, "
               "file or stream."),
        Metric("wsgifast_response_body_bytes_total", "counter", "By", ("wsgifast_sent_as",),
               "Bytes of response bodies. The label wsgifast_sent_as says how the bodies were "
               "sent."),
        Metric("wsgifast_responses_repaired_total", "counter", "{response}", ("http_route",),
               "Responses in which wsgifast changed a slow or invalid body."),
        Metric("wsgifast_content_length_errors_total", "counter", "{response}", ("kind",),
               "Responses with a wrong Content-Length. The body was too short or too long, or "
               "wsgifast corrected the header: short, long, corrected.",
               known=("short", "long", "corrected")),
        Metric("wsgifast_uncoded_bytes_total", "counter", "By", ("coding",),
               "Bytes of response bodies before wsgifast compressed them, by content coding: "
               "zstd, br, gzip.",
               known=_CODINGS),
        Metric("wsgifast_coded_bytes_total", "counter", "By", ("coding",),
               "Bytes of response bodies after wsgifast compressed them.", known=_CODINGS),
        Metric("wsgifast_compression_cpu_seconds_total", "counter", "s", ("coding",),
               "CPU time for which wsgifast compressed bodies.", known=_CODINGS),
        Metric("wsgifast_clients_left_total", "counter", "{response}", (),
               "Responses whose client had not received the last byte when it disconnected, or "
               "when the server disconnected it."),
    ),
    SOCKETS: (
        Metric("wsgifast_sendfile_bytes_total", "counter", "By", (),
               "Bytes of files that were sent by sendfile."),
        Metric("wsgifast_connections", "gauge", "{connection}", ("state",),
               f"Open connections by their state: {', '.join(CONNECTION_STATES)}.",
               known=CONNECTION_STATES),
        Metric("wsgifast_connections_accepted_total", "counter", "{connection}", (),
               "Connections that the server has accepted."),
        Metric("wsgifast_connections_refused_total", "counter", "{connection}", (),
               "Connections that were closed at once because of connections_per_address."),
        Metric("wsgifast_timeouts_total", "counter", "{connection}", ("kind",),
               f"Connections that ended by a timeout: {', '.join(_TIMEOUTS)}.",
               known=_TIMEOUTS),
        Metric("wsgifast_requests_refused_total", "counter", "{request}", ("status",),
               "Requests that got an error response without a call of the app."),
        Metric("wsgifast_slow_clients", "gauge", "{connection}", (),
               "Clients that receive their response more slowly than the app produces it."),
        Metric("wsgifast_output_queued_bytes", "gauge", "By", (),
               "Bytes of responses in memory that wait for slow clients."),
        Metric("wsgifast_workers", "gauge", "{process}", (), "Workers that are serving."),
        Metric("wsgifast_workers_draining", "gauge", "{process}", (),
               "Workers that are not ready because the server will stop."),
        Metric("wsgifast_health_checks_total", "counter", "{request}", ("status",),
               "Requests to health_path and ready_path, by the status of the response.",
               known=("200", "503")),
        Metric("wsgifast_requests_shed_total", "counter", "{request}", ("reason",),
               f"Requests that were dropped while they waited: {', '.join(_SHED)}.", known=_SHED),
        Metric("wsgifast_request_timeouts_total", "counter", "{request}", (),
               "Requests whose app took longer than request_timeout_s."),
        Metric("wsgifast_worker_starts_total", "counter", "{process}", (),
               "Workers that have started to serve."),
        Metric("wsgifast_worker_memory_bytes", "gauge", "By", (),
               "Resident memory of each worker, by its pid.", across="each"),
        Metric("wsgifast_worker_cpu_seconds_total", "counter", "s", (),
               "CPU time of the workers."),
    ),
    WORKER: (
        Metric("wsgifast_threads", "gauge", "{thread}", (), "Threads that run the app."),
        Metric("wsgifast_threads_busy", "gauge", "{thread}", (),
               "Threads that are handling a request."),
        Metric("wsgifast_requests_waiting", "gauge", "{request}", (),
               "Complete requests that wait for a free thread."),
        Metric("wsgifast_thread_wait_seconds", "histogram", "s", (),
               "Time that requests have waited for a thread.", bounds=_WAIT_S),
        Metric("wsgifast_queue_seconds", "histogram", "s", (),
               "Time from the proxy's X-Request-Start to the arrival at this server.",
               bounds=_WAIT_S),
        Metric("wsgifast_saturated_seconds_total", "counter", "s", (),
               "Time in which no thread of a worker was free."),
        Metric("wsgifast_connections_limit", "gauge", "{connection}", (),
               "Sum of the setting worker_connections of all workers, the limit of open "
               "connections."),
        Metric("wsgifast_accept_backlog", "gauge", "{connection}", (),
               "Connections that wait in the kernel to be accepted (Linux, TCP).", across="max"),
        Metric("wsgifast_accept_backlog_limit", "gauge", "{connection}", (),
               "Limit of connections that wait in the kernel. The kernel drops further connections "
               "(Linux, TCP).", across="max"),
        Metric("wsgifast_output_spooled_bytes", "gauge", "By", (),
               "Bytes of responses in temporary files that wait for slow clients."),
        Metric("wsgifast_requests_in_memory_bytes", "gauge", "By", (),
               "Memory of requests that have not arrived completely, or that the app is still "
               "processing."),
        Metric("wsgifast_request_bodies_spooled_bytes", "gauge", "By", (),
               "Bytes of request bodies in temporary files."),
        Metric("wsgifast_worker_ends_total", "counter", "{process}", ("reason",),
               f"Workers that have ended: {', '.join(_ENDS)}.", known=_ENDS),
    ),
}  # fmt: skip

CATALOGUE: Final = {
    metric.name: metric._replace(reported_by=reported_by)
    for reported_by, metrics in _BY_REPORTER.items()
    for metric in metrics
}
