"""The doctor finds endpoints of an app that respond slowly or wrongly.

Use it on the command line with `wsgifast doctor shop.wsgi:application`, or in tests::

    from wsgifast.commands.doctor import as_text, examine

    def test_bodies() -> None:
        report = examine(app, ["/", "/export.csv"])
        assert not report.of("wrong") and not report.of("slow"), as_text(report)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

from ...checks import checked_interface
from ...errors import ConfigurationError
from ..loading import adds_asgifast, unwrapped
from .catalogue import CATALOGUE, explain, known_ids
from .endpoints import NAMED, Allow, Fetch, chosen, from_paths
from .examination import Record, observer
from .findings import add_observation, findings_of, unlimited_uploads
from .formats import as_text
from .frameworks import from_framework
from .model import Endpoint, Finding, Found, Observation, Report, Severity, Unreached

__all__ = [
    "CATALOGUE",
    "Endpoint",
    "Finding",
    "Observation",
    "Report",
    "Severity",
    "Unreached",
    "as_text",
    "examine",
    "explain",
]

_NO_ENDPOINTS = (
    "{}: no endpoints are known: the app has no routes, or its framework lists none that the "
    "doctor can read. Name paths, as in: wsgifast doctor {} / /about. Or use --openapi "
    "(with the path of the document that FastAPI, Litestar and others serve, such as "
    "/openapi.json) or --access-log"
)


def examine(
    app: Any,
    endpoints: Iterable[str | Endpoint] | None = None,
    *,
    values: Mapping[str, str] | None = None,
    headers: Iterable[tuple[str, str]] = (),
    all_endpoints: bool | Allow = False,
    unsafe: bool = False,
    limit_s: float = 10.0,
    silence: Iterable[str] = (),
    scheme: Literal["http", "https"] = "http",
    name: str | None = None,
    found: Callable[[Fetch], Found] | None = None,
    progress: Callable[[int, int, Endpoint], None] | None = None,
) -> Report:
    """Request the endpoints of an app without and with wsgifast's middleware, and return a report.

    The app runs in this process, and gets up to sixty requests for each endpoint. By default, only
    safe endpoints are requested: those of `endpoints`, files in folders that the app serves, and
    operations that an OpenAPI document describes as read-only. Only GET and HEAD are used, unless
    `unsafe` is True.

    :param app: a WSGI or ASGI app. If the app is already in WSGIFast or ASGIFast, the doctor
        compares it with the app without this wrapper.
    :param endpoints: paths such as "/export.csv?year=1", or endpoints. None: the routes of the
        app's framework (Flask, Quart, Django, Starlette, FastAPI).
    :param values: maps names of URL parameters to values, for the patterns of the framework.
    :param headers: the headers of every request, such as ("Cookie", "sessionid=..."). The default
        Host is "localhost".
    :param all_endpoints: True to also request endpoints that may change data. Or a function that
        gets the safe endpoints and the other endpoints, and returns whether to request the other
        endpoints.
    :param unsafe: use methods other than GET and HEAD too.
    :param limit_s: the time limit of one request in seconds.
    :param silence: the ids of findings to omit.
    :param scheme: the URL scheme of the requests in the environ or scope.
    :param name: the name of the app in the report.
    :param found: a function that returns endpoints to request, and endpoints that cannot be
        requested. It gets a function that requests a path of the app, and returns the body.
    :param progress: a function that is called before each endpoint. It gets the number of the
        endpoint, the number of all endpoints, and the endpoint.
    :raises ConfigurationError: if `app` is not an app, an id is unknown, or there is no endpoint.
    :raises WSGIFastError: if an ASGI app does not start.
    """
    silenced = known_ids(silence)
    headers = tuple(headers)
    interface = checked_interface(app)
    original, (app, is_outermost) = app, unwrapped(app)
    was_wrapped = is_outermost or adds_asgifast(app)
    report = Report(
        name or str(getattr(app, "__module__", "app")), interface, None, was_wrapped=was_wrapped
    )
    wrapped = original if is_outermost else None
    with observer(app, interface, wrapped, limit_s=limit_s) as (record, observe):
        report.framework, listed, unlimited = from_framework(app, values or {})
        is_named = endpoints is not None or found is not None
        if endpoints is not None:
            listed = _listed_endpoints(endpoints)
        elif found is not None:
            named = found(_fetcher(record, headers, limit_s))
            listed = [*named, *(listed if all_endpoints is True else ())]
        elif all_endpoints and not listed:
            listed = [Endpoint("/", "/", "the root")]
        requested, unreached = chosen(
            listed,
            unsafe=unsafe,
            allow=all_endpoints if callable(all_endpoints) else lambda *_: bool(all_endpoints),
        )
        if not requested and not unreached:
            raise ConfigurationError(_NO_ENDPOINTS.format(report.app, report.app))
        for number, endpoint in enumerate(requested):
            if progress is not None:
                progress(number, len(requested), endpoint)
            seen = observe(replace(endpoint, headers=(*endpoint.headers, *headers), scheme=scheme))
            add_observation(report, seen, findings_of(seen, was_wrapped=was_wrapped))
            for each in (seen.raw, seen.wrapped, seen.compressed, seen.wrapped_compressed):
                if each is not None:
                    each.body.clear()  # frees the memory
        report.unreached += unreached
        reached = {(seen.endpoint.method, seen.endpoint.name) for seen in report.observations}
        report.unreached = [
            each
            for each in dict.fromkeys(report.unreached)
            if (each.method, each.name) not in reached
        ]
    if unlimited and not is_named and not _limits_bodies(original):
        report.findings.append(unlimited_uploads(unlimited))
    report.finish(silenced)
    return report


def _limits_bodies(app: Any) -> bool:
    """Return whether a wrapper around the app has the option `body_limit_bytes`."""
    limits = (getattr(each, "body_limits", None) for each in (app, getattr(app, "wsgi_app", None)))
    return any(getattr(each, "limit_bytes", None) is not None for each in limits)


def _listed_endpoints(endpoints: Iterable[str | Endpoint]) -> Found:
    listed = list(endpoints)
    chosen = [each for each in listed if isinstance(each, Endpoint)]
    return [
        *from_paths([each for each in listed if isinstance(each, str)]),
        *(replace(each, evidence=each.evidence or NAMED) for each in chosen),
    ]


def _fetcher(record: Record, headers: tuple[tuple[str, str], ...], limit_s: float) -> Fetch:
    def fetch(path: str) -> bytes:
        raw = record(Endpoint(path, path, "fetched", headers=headers))
        if raw.timed_out or raw.status != 200:
            timeout = raw.timed_out and f"nothing within {limit_s:g} s"
            response = timeout or raw.error or raw.problem or raw.status or "nothing"
            raise ConfigurationError(
                f"the app answers {response} to GET {path}, and not 200 in time. "
                "--header, --cookie or a longer --timeout may help"
            )
        return bytes(raw.body)

    return fetch
