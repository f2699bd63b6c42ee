"""The doctor: which endpoints of an app return slow, wrong or fragile bodies, and what it costs.

From the command line `wsgifast doctor shop.wsgi:application`; in tests::

    from wsgifast.doctor import as_text, examine

    def test_bodies() -> None:
        report = examine(app, ["/", "/export.csv"])
        assert not report.of("wrong") and not report.of("slow"), as_text(report)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..apps import Interface, check_app, interface_of
from ..errors import ConfigurationError
from ..loading import unwrapped
from .catalogue import CATALOGUE, explain, known_ids
from .endpoints import NAMED, Fetch, from_paths, sounds_unsafe
from .examination import Observer, observer
from .formats import as_text
from .frameworks import from_framework
from .judge import add_to, findings_of
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

_SAFE_METHODS = ("GET", "HEAD")
_NO_ENDPOINTS = (
    "{}: no endpoints are known: the app has no routes, or its framework lists none that the "
    "doctor can read. Name paths, as in: wsgifast doctor {} / /about; or use --urls, --openapi, "
    "--har or --access-log"
)


def examine(
    app: Any,
    endpoints: Iterable[str | Endpoint] | None = None,
    *,
    values: Mapping[str, str] | None = None,
    headers: Iterable[tuple[str, str]] = (),
    unsafe: bool = False,
    limit_s: float = 10.0,
    silence: Iterable[str] = (),
    name: str | None = None,
    interface: Interface | None = None,
    found: Callable[[Fetch], Found] | None = None,
    progress: Callable[[int, int, Endpoint], None] | None = None,
) -> Report:
    """Ask an app for its endpoints, raw and wrapped in turn, and report what was seen.

    Each endpoint is asked for up to fifty times in this process. Only GET and HEAD are used, and
    what changes something by its name, such as "/logout", only if it is in `endpoints`; unless
    `unsafe` is True.

    :param app: a WSGI or ASGI app; one that is wrapped in WSGIFast or ASGIFast already is
        examined without it.
    :param endpoints: paths such as "/export.csv?year=1", or endpoints; None for those that the
        app's framework lists: Flask, Quart, Django, Falcon, Bottle, Pyramid, Starlette, FastAPI,
        Litestar, Esmerald, BlackSheep, Connexion, Sanic, Streamlit.
    :param values: for the parameters of the framework's patterns, by name.
    :param headers: for every request, such as ("Cookie", "sessionid=...").
    :param limit_s: seconds for one request.
    :param silence: ids of findings to leave out.
    :param name: what the report calls the app.
    :param interface: "WSGI" or "ASGI", where it cannot be seen.
    :param found: returns endpoints and what was not reached, from
        :mod:`wsgifast.doctor.endpoints`; called with a function that requests a path of the app.
    :param progress: called before each endpoint with its number, their count, and itself.
    :raises ConfigurationError: if the app is none, an id is unknown, or there is nothing to ask.
    :raises WSGIFastError: if an ASGI app does not start.
    """
    silenced = known_ids(silence)
    headers = tuple(headers)
    if interface is None:
        interface = interface_of(app)
    if interface is None:
        check_app(app, "WSGI")
        interface = "WSGI"
    app, was_wrapped = unwrapped(app)
    report = Report(
        name or str(getattr(app, "__module__", "app")), interface, None, was_wrapped=was_wrapped
    )
    with observer(app, interface, limit_s=limit_s) as observe:
        report.framework, listed = from_framework(app, values or {})
        if endpoints is not None:
            given = list(endpoints)
            texts = [each for each in given if isinstance(each, str)]
            listed = ([*from_paths(texts)[0], *(e for e in given if isinstance(e, Endpoint))], [])
        elif found is not None:
            listed = found(_fetcher(observe, headers, limit_s))
        asked, report.unreached = _askable(listed, unsafe=unsafe, named=endpoints is not None)
        if not asked and not report.unreached:
            raise ConfigurationError(_NO_ENDPOINTS.format(report.app, report.app))
        for number, endpoint in enumerate(asked):
            if progress is not None:
                progress(number, len(asked), endpoint)
            own = (*endpoint.headers, *headers)
            seen = observe(replace(endpoint, headers=own))
            seen.raw.body.clear()  # no longer needed
            seen.wrapped.body.clear()
            add_to(report, seen, findings_of(seen), silenced)
    report.sort()
    return report


def _fetcher(observe: Observer, headers: tuple[tuple[str, str], ...], limit_s: float) -> Fetch:
    def fetch(path: str) -> bytes:
        raw = observe(Endpoint(path, path, "fetched", headers=headers)).raw
        if raw.timed_out:
            raise ConfigurationError(
                f"the app does not answer GET {path} within {limit_s:g} s: give a longer --timeout"
            )
        if raw.status != 200:
            answer = raw.error or raw.problem or raw.status or "nothing"
            raise ConfigurationError(
                f"the app answers {answer} to GET {path}, and not 200; "
                "a page behind a login may need --header or --cookie"
            )
        return bytes(raw.body)

    return fetch


def _askable(found: Found, *, unsafe: bool, named: bool) -> tuple[list[Endpoint], list[Unreached]]:
    """The endpoints to request, and the others with the reason.

    :param named: somebody chose each of these endpoints.
    """
    endpoints, unreached = found
    if unsafe:
        return list(endpoints), list(unreached)
    asked, left = [], list(unreached)
    for endpoint in endpoints:
        reason = None
        if endpoint.method not in _SAFE_METHODS:
            reason = "may change something; --unsafe asks for it"
        elif not named and endpoint.source not in NAMED and sounds_unsafe(endpoint.url):
            reason = "may change something, by its name; name the path, or --unsafe asks for it"
        if reason is None:
            asked.append(endpoint)
        else:
            left.append(Unreached(endpoint.name, reason, endpoint.method))
    return asked, left
