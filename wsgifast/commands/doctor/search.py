"""Which endpoints are requested: those that are safe by evidence, and the rest if that is allowed.

A GET should change nothing (RFC 9110 9.2.1), and in many apps it does: the method, the name of a
view and its path say nothing reliable. So an endpoint is requested without asking only if something
else says that it is safe, see :attr:`.model.Endpoint.evidence`: the user has named it, it is a file
of a folder that the app serves, a browser loads it with a page that the user has named, or an
OpenAPI document calls it read-only.

The links in an answer are what a browser loads with a page, and what else the page leads to.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

from .endpoints import NAMED, encoded, filled_by_prefix, values_in
from .model import Endpoint, Found, Recording, Unreached

# Whether the rest may be requested: called with the endpoints that are safe, and the rest.
Allow = Callable[[Sequence[Endpoint], Sequence[Endpoint]], bool]

_SAFE_METHODS = ("GET", "HEAD")
# Endpoints that no list of routes has: those that answers link to, and, with that as their
# evidence, what a browser loads with pages.
_MOST_ADDED = {False: 200, True: 30}
# How many URLs of a pattern are tried before one of them is a page.
_MOST_TRIES = 3


class Search:
    """An iterator of the endpoints to request; what their answers link to is added to it."""

    def __init__(
        self, found: Found, host: str, *, unsafe: bool, allow: Allow, follows: bool
    ) -> None:
        """Find out what may be requested.

        :param host: the app's own, in its URLs.
        :param unsafe: request the rest without asking, and other methods than GET and HEAD, too.
        :param follows: whether what a browser loads with a page that the user has named is added.
        """
        self._host = host
        self._follows = follows
        listed = [each for each in found if isinstance(each, Endpoint)]
        endpoints = list({(e.method, e.url): e for e in reversed(listed)}.values())[::-1]
        names = {(each.method, each.name) for each in endpoints}
        left = [each for each in found if isinstance(each, Unreached)]
        self._left = [each for each in left if (each.method, each.name) not in names]
        readable = [each for each in endpoints if each.method in _SAFE_METHODS]
        safe = [each for each in readable if each.evidence]
        rest = [each for each in (endpoints if unsafe else readable) if each not in safe]
        has_patterns = any(left.missing for left in self._left)
        self._is_allowed = bool(rest or has_patterns) and (unsafe or allow(safe, rest))
        if not self._is_allowed:
            reason = "may change something: --all requests it, too"
            self._left += [_left(each, reason) for each in rest]
            rest = []
        reason = "its method changes something: --unsafe requests it, too"
        self._left += [_left(e, reason) for e in endpoints if e not in readable and not unsafe]
        self._waiting = deque([*safe, *rest])
        self._known = {(each.method, unquote(each.url)) for each in endpoints}
        # Patterns of GET without values, the most specific one first: with the fewest parameters,
        # and of these the longest.
        patterns = (e for e in self._left if e.missing and e.method == "GET")
        order = sorted(patterns, key=lambda each: (len(each.missing), -len(each.name)))
        self._patterns = list(dict.fromkeys(each.name for each in order))
        # Those of which a URL is known; other links to them; and how often one was tried.
        self._filled = {each.name for each in endpoints if each.name != each.url}
        self._links: dict[str, list[str]] = {}
        self._tries: Counter[str] = Counter()
        self._values: dict[str, str] = {}
        # How many were added without evidence, and with it.
        self._added: Counter[bool] = Counter()
        self.done = 0

    @property
    def unreached(self) -> list[Unreached]:
        """What is not requested, and why."""
        return [e for e in self._left if e.method != "GET" or not self._tries[e.name]]

    @property
    def total(self) -> int:
        """How many endpoints are known to be requested."""
        return self.done + len(self._waiting)

    def __iter__(self) -> Iterator[Endpoint]:
        while self._waiting:
            yield self._waiting.popleft()
            self.done += 1

    def learn(self, endpoint: Endpoint, answer: Recording) -> None:
        """Add what an answer links to: endpoints, and values of parameters."""
        path = endpoint.url.partition("?")[0]
        values = values_in(endpoint.name, path)
        if values and answer.status == 200:
            self._values |= values
        elif values:
            self._try_another(endpoint.name)
        is_shown = self._follows and endpoint.evidence == NAMED and answer.status == 200
        if not (is_shown or self._is_allowed):
            return
        links = links_of(answer, endpoint.url, self._host)
        for url in links if is_shown else ():
            if links[url]:
                self._add(url, f"a browser loads it with {endpoint.url}")
        for url in links if self._is_allowed else ():
            self._add(url, "")
        for pattern in self._patterns if self._is_allowed else ():
            filled = filled_by_prefix(pattern, self._values)
            if pattern not in self._filled and filled is not None:
                self._request(filled, pattern)

    def _try_another(self, pattern: str) -> None:
        """Another link may have a value for which there is a page."""
        self._filled.discard(pattern)
        links = self._links.get(pattern)
        if links and self._tries[pattern] < _MOST_TRIES:
            self._request(links.pop(0), pattern)

    def _add(self, url: str, evidence: str) -> None:
        path = url.partition("?")[0]
        if {("GET", unquote(url)), ("GET", unquote(path))} & self._known:
            return
        for pattern in self._patterns:
            if values_in(pattern, path) is not None:
                if pattern not in self._filled:
                    self._request(url, pattern, evidence)
                elif self._is_allowed:
                    self._links.setdefault(pattern, []).append(url)
                return
        self._added[bool(evidence)] += 1
        is_one_more = self._added[bool(evidence)] <= _MOST_ADDED[bool(evidence)]
        if is_one_more and all(values_in(each, path) is None for each in self._filled):
            self._request(url, path, evidence)

    def _request(self, url: str, name: str, evidence: str = "") -> None:
        """:param name: the pattern, or the path if it has none."""
        if ("GET", unquote(url)) not in self._known:
            self._known.add(("GET", unquote(url)))
            self._waiting.append(Endpoint(url, name, "link", evidence=evidence))
            if name in self._patterns:
                self._filled.add(name)
                self._tries[name] += 1


def _left(endpoint: Endpoint, reason: str) -> Unreached:
    return Unreached(endpoint.name, reason, endpoint.method)


# Of a page; a list of a thousand items has the same endpoint a thousand times.
_MOST_LINKS = 1000
_MOST_BYTES = 4 * 1024 * 1024
# What a browser loads without being asked as soon as it shows a page (HTML, 4.6.7 and 4.8).
_LOADED_LINKS = frozenset(
    {"stylesheet", "icon", "apple-touch-icon", "mask-icon", "manifest", "modulepreload", "preload"}
)
_LOADED = frozenset({"audio", "img", "script", "source", "track", "video"})
_LINKS = dict.fromkeys(("a", "area", "link"), "href") | dict.fromkeys(
    ("frame", "iframe", *_LOADED), "src"
)


def links_of(answer: Recording, url: str, host: str) -> dict[str, bool]:
    """The links of an answer: a page's, those in JSON, and a redirect's.

    :param url: path and query that were requested.
    :param host: the app's own; URLs with another one are left out.
    :returns: paths of the app's own, and whether a browser loads them with the page, as images,
        scripts, style sheets, icons and media: whoever opens the page requests these, and the app
        knows. They come first. The others are what a visitor may choose, such as /logout.
    """
    base = f"http://{host}{url}"
    found: list[tuple[str, bool]] = []
    kind = (answer.header("Content-Type") or "").partition(";")[0].strip().lower()
    if answer.header("Content-Encoding") is None:
        text = bytes(answer.body[:_MOST_BYTES]).decode(errors="replace")
        if kind in ("text/html", "application/xhtml+xml"):
            parser = _Page()
            with contextlib.suppress(AssertionError):  # of html.parser, at some broken markup
                parser.feed(text)
            with contextlib.suppress(ValueError):
                base = urljoin(base, parser.base)
            found = parser.found
        elif kind == "application/json" or kind.endswith("+json"):
            found = [(each, False) for each in _strings(text)]
    location = answer.header("Location")
    if location is not None:
        found.append((location, False))
    links: dict[str, bool] = {}
    for link, is_loaded in found[:_MOST_LINKS]:
        path = _own_path(link, base, host)
        if path is not None:
            links.setdefault(path, is_loaded)
    return dict(sorted(links.items(), key=lambda link: not link[1]))


def _own_path(link: str, base: str, own: str) -> str | None:
    """The path and query of a link to the app's own host; None for others."""
    try:
        parts = urlsplit(urljoin(base, link.strip()))
        host = parts.netloc.rpartition("@")[2].lower()
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or host != own.lower():
        return None
    return encoded((parts.path or "/") + (f"?{parts.query}" if parts.query else ""))


class _Page(HTMLParser):
    """Collects the links of a page, and whether a browser loads each with it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = ""
        self.found: list[tuple[str, bool]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value}
        if tag == "base" and not self.base:
            self.base = given.get("href", "")
        url = given.get(_LINKS.get(tag, ""))
        if url is not None:
            kinds = set(given.get("rel", "").lower().split())
            is_loaded = tag in _LOADED or (tag == "link" and bool(_LOADED_LINKS & kinds))
            self.found.append((url, is_loaded))


def _strings(text: str) -> Iterator[str]:
    """The strings in JSON that may be URLs."""
    try:
        waiting: list[Any] = [json.loads(text)]
    except (ValueError, RecursionError):
        return
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str) and re.match(r"/(?!/)|https?://", value):
            yield value
