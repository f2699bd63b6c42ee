"""Which endpoints are requested: those that are safe by evidence, and the rest if that is allowed.

A GET should change nothing (RFC 9110 9.2.1), and in many apps it does: the method, the name of a
view and its path say nothing reliable. So an endpoint is requested without asking only if something
else says that it is safe, see :attr:`.model.Endpoint.evidence`: the user has named it, it is a file
of a folder that the app serves, a browser loads it with a page that the user has named, or an
OpenAPI document calls it read-only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import unquote

from .endpoints import NAMED, filled, values_in
from .links import links_of
from .model import Endpoint, Found, Recording, Unreached

# Whether the rest may be requested: called with the endpoints that are safe, and the rest.
Allow = Callable[[Sequence[Endpoint], Sequence[Endpoint]], bool]

_SAFE_METHODS = ("GET", "HEAD")
# Endpoints that no list of routes has: those that answers link to, and what a browser loads with
# pages.
_MOST_LINKED, _MOST_LOADED = 200, 30


class Search:
    """An iterator of the endpoints to request; what their answers link to is added to it.

    :ivar unreached: what is not requested, and why.
    """

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
        endpoints = list({(e.method, e.url): e for e in reversed(found[0])}.values())[::-1]
        names = {(each.method, each.name) for each in endpoints}
        self.unreached = [left for left in found[1] if (left.method, left.name) not in names]
        readable = [each for each in endpoints if each.method in _SAFE_METHODS]
        safe = [each for each in readable if each.evidence]
        rest = [each for each in (endpoints if unsafe else readable) if each not in safe]
        has_patterns = any(left.missing for left in self.unreached)
        self._is_allowed = bool(rest or has_patterns) and (unsafe or allow(safe, rest))
        if not self._is_allowed:
            reason = "may change something: --all requests it, too"
            self.unreached += [_left(each, reason) for each in rest]
            rest = []
        reason = "its method changes something: --unsafe requests it, too"
        self.unreached += [_left(e, reason) for e in endpoints if e not in readable and not unsafe]
        self._waiting = deque([*safe, *rest])
        self._known = {(each.method, unquote(each.url)) for each in endpoints}
        # Patterns of which one URL is enough.
        self._filled = [each.name for each in endpoints if each.name != each.url]
        self._linked = self._loaded = 0
        self.done = 0

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
        is_shown = self._follows and endpoint.evidence == NAMED and answer.status == 200
        if not (is_shown or self._is_allowed):
            return
        links = links_of(answer, endpoint.url, self._host)
        for path in links.loaded if is_shown else ():
            self._add(path, f"a browser loads it with {endpoint.url}")
        for path in (*links.loaded, *links.others) if self._is_allowed else ():
            self._add(path, "")

    def _add(self, url: str, evidence: str) -> None:
        path = url.partition("?")[0]
        if {("GET", unquote(url)), ("GET", unquote(path))} & self._known:
            return
        patterns = [e.name for e in self.unreached if e.missing and e.method == "GET"]
        # The most specific one: with the fewest parameters, and of these the longest.
        patterns.sort(key=lambda each: (each.count("{") + each.count("<"), -len(each)))
        pattern = next((each for each in patterns if values_in(each, path) is not None), None)
        if pattern is not None:
            self._fill(pattern, url, evidence)
            if self._is_allowed:
                self._fill_below(pattern, path)
            return
        if evidence:
            self._loaded += 1
            is_one_more = self._loaded <= _MOST_LOADED
        else:
            self._linked += 1
            is_one_more = self._linked <= _MOST_LINKED
        if is_one_more and all(values_in(each, path) is None for each in self._filled):
            self._queue(Endpoint(url, path, "link", evidence=evidence))

    def _fill(self, pattern: str, url: str, evidence: str = "") -> None:
        """Request a pattern's URL."""
        self.unreached = [e for e in self.unreached if (e.name, e.method) != (pattern, "GET")]
        self._filled.append(pattern)
        self._queue(Endpoint(url, pattern, "link", evidence=evidence))

    def _fill_below(self, pattern: str, path: str) -> None:
        """The same values fill /user/<id>/posts where /user/<id> is known, if there are no more."""
        for left in [e for e in self.unreached if e.missing and e.method == "GET"]:
            below = left.name.removeprefix(pattern.rstrip("/"))
            if below != left.name and below.startswith("/"):
                url = filled(below, {})
                if isinstance(url, str):
                    self._fill(left.name, path.rstrip("/") + url)

    def _queue(self, endpoint: Endpoint) -> None:
        if (endpoint.method, unquote(endpoint.url)) not in self._known:
            self._known.add((endpoint.method, unquote(endpoint.url)))
            self._waiting.append(endpoint)


def _left(endpoint: Endpoint, reason: str) -> Unreached:
    return Unreached(endpoint.name, reason, endpoint.method)
