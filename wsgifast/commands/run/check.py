"""`wsgifast run --check`: find problems of a deployment, from its command line."""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ...errors import ConfigurationError
from ...metrics.setup import VARIABLE as METRICS
from ...server_options import SHARED
from ..doctor.catalogue import CATALOGUE, known_ids
from ..doctor.model import SEVERITIES, Endpoint, Finding, Report
from ..loading import AppNotLoaded, ServerName
from ..loading.servers import Loaded, load_as
from .sizing import Container, read_container, size, temporary_note

# The default of nginx's proxy_read_timeout and upstream keepalive_timeout, and the idle timeout of
# AWS's load balancers.
_PROXY_S = 60
# The default of Kubernetes' terminationGracePeriodSeconds.
_SUPERVISOR_S = 30
# The descriptors of a connection: its socket, the file of the app, and a copy to send from.
_FILES_OF_A_CONNECTION, _OTHER_FILES = 3, 100
# gunicorn's workers in which a thread or process waits for its client.
_BLOCKED_BY_SLOW_CLIENTS = ("sync", "gthread")
_LOCAL = ("127.", "localhost", "[::1]", "unix:")
_SERVERS: Mapping[str, ServerName] = {
    "gunicorn": "gunicorn", "uvicorn": "uvicorn", "asgifast.uvicorn": "uvicorn"
}  # fmt: skip


def check_deployment(
    command: Sequence[str], environment: Mapping[str, str], silenced: Sequence[str] = ()
) -> Report:
    """Check the command line of a server, its configuration and app, and this machine.

    :param command: a command line of gunicorn or uvicorn, also as `python -m gunicorn`.
    :param environment: variables to add to those of this process.
    :param silenced: the ids of findings to omit.
    :raises ConfigurationError: if the command is another server's, if the server refuses its
        arguments, or for an unknown id.
    :raises AppNotLoaded: if its app cannot be loaded.
    """
    left_out = known_ids(silenced)
    server, arguments = _split(command)
    loaded = load_as(server, "", arguments, environment)
    if loaded.refusal:
        raise ConfigurationError(f"{server}: {loaded.refusal}")
    if loaded.error:
        raise AppNotLoaded(loaded.error)
    name = " ".join([server, *arguments])
    deployment = Endpoint(name, name, "command line")
    found = [
        Finding(id, CATALOGUE[id].severity, deployment, what, "", _fix(id, server))
        for id, what in findings(
            server,
            loaded,
            read_container(),
            open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            is_root=os.geteuid() == 0,
            temporary=temporary_note(),
            has_body_limit=bool(
                {**os.environ, **environment}.get(SHARED["body_limit_bytes"].variable)
            ),
            has_metrics=bool({**os.environ, **environment}.get(METRICS)),
        )
    ]
    report = Report(name, loaded.interface or "WSGI", None, loaded.was_wrapped, findings=found)
    report.finish(left_out)
    return report


def _fix(id: str, server: ServerName) -> str:
    entry = CATALOGUE[id]
    return entry.fixes.get(server, entry.wsgifast)


def as_lines(report: Report) -> list[str]:
    """Return each finding with its fix, and a summary, as lines of text."""
    lines = []
    for finding in report.findings:
        title = CATALOGUE[finding.id].title
        lines += [
            f"{finding.id}  {finding.severity:5}  {title}: {finding.what}",
            f"       {finding.fix.removeprefix('nothing; ')}",
        ]
    counts = [f"{len(report.of(kind))} {kind}" for kind in SEVERITIES if report.of(kind)]
    return [*lines, ", ".join(counts) or "nothing found"]


def findings(
    server: ServerName,
    loaded: Loaded,
    container: Container,
    *,
    open_files: int,
    is_root: bool,
    temporary: str | None,
    has_body_limit: bool,
    has_metrics: bool = False,
) -> Iterator[tuple[str, str]]:
    """Yield the ids of findings, each with the observed value.

    :param loaded: the app and the configuration of the server.
    :param open_files: the limit of open files. -1 for no limit.
    :param is_root: whether the user of this process is root.
    :param temporary: the warning of :func:`.sizing.temporary_note`.
    :param has_body_limit: whether an environment variable limits request bodies.
    :param has_metrics: whether the metrics address, with its health checks, is configured.
    """
    options = loaded.configured
    kind = str(options["kind"])
    fast = "wsgifast" in kind or "asgifast" in kind
    if kind in _BLOCKED_BY_SLOW_CLIENTS:
        yield "WF101", kind
    if not has_body_limit and (server == "uvicorn" or not fast):
        yield "WF102", "WSGIFAST_BODY_LIMIT_BYTES is not set" if fast else kind
    if loaded.debug:
        yield "WF103", loaded.debug
    if is_root and not options.get("uid"):
        yield "WF104", "the user is root, and the server does not change it"
    if options["reload"]:
        yield "WF105", "--reload"
    if temporary is not None:
        yield "WF106", temporary
    connections = options.get("connections") or 0
    needed = _FILES_OF_A_CONNECTION * connections + _OTHER_FILES
    if fast and 0 <= open_files < needed:
        yield (
            "WF107",
            f"{open_files} open files for {connections} connections, of which each may need 3",
        )
    workers, cpus = options["workers"], math.ceil(container.cpus)
    # Half the CPUs are enough: a database, a proxy or threads of the app may use the others. Memory
    # may limit the workers further.
    least = min(cpus / 2, size(container, loaded.memory_bytes, spare=server == "gunicorn")[0])
    if not options["reload"] and not least <= workers <= 2 * cpus + 1:
        yield "WF108", f"{workers} for {container.cpus:g} CPUs of the {container.cpus_by}"
    timeout = options.get("timeout")
    if timeout is not None and (timeout == 0 or timeout > _PROXY_S):
        yield "WF109", "no timeout at all" if timeout == 0 else f"{timeout} s"
    if kind != "sync" and 0 < options["keepalive"] < _PROXY_S:
        yield "WF110", f"{options['keepalive']} s"
    graceful = options.get("graceful")
    if graceful is None or graceful >= _SUPERVISOR_S:
        yield "WF111", "no end" if graceful is None else f"{graceful} s"
    drain_s = options.get("drain_delay_s") or 0
    if drain_s and graceful is not None and graceful < drain_s:
        yield "WF117", f"{graceful:g} s, and drain_delay_s is {drain_s:g}"
    local = all(address.startswith(_LOCAL) for address in options["addresses"])
    if not local and "*" in options["forwarded"]:
        yield "WF112", f"forwarded_allow_ips is *, at {', '.join(options['addresses'])}"
    if not local and "ready_path" in options and not (options["ready_path"] or has_metrics):
        yield "WF116", f"ready_path is not set, at {', '.join(options['addresses'])}"
    behind = [each for each in options["addresses"] if each.startswith("unix:")]
    if local and loaded.tls_header:
        behind.append(f"SECURE_PROXY_SSL_HEADER is {loaded.tls_header}")
    if behind and not options.get("certificate"):  # with a certificate, there is no proxy
        yield "WF113", ", ".join(behind)
    if loaded.replaced:
        yield "WF115", ", ".join(loaded.replaced)
    if not local and loaded.tls_header:
        yield "WF114", f"SECURE_PROXY_SSL_HEADER is {loaded.tls_header}"


def _split(command: Sequence[str]) -> tuple[ServerName, list[str]]:
    words = list(command)
    if words and Path(words[0]).name.startswith("python") and "-m" in words[1:3]:
        del words[: words.index("-m") + 1]
    server = _SERVERS.get(Path(words[0]).name) if words else None
    if server is None:
        raise ConfigurationError(
            f"{' '.join(command)}: after -- a command of gunicorn or uvicorn is expected, as in "
            "wsgifast run --check -- gunicorn shop.wsgi"
        )
    return server, words[1:]
