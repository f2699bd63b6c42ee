"""Decides which endpoints are requested: the safe ones, and the others if that is allowed.

A GET should change nothing (RFC 9110, section 9.2.1), but in many apps it does. The method, the
name of a view and its path do not prove that it is safe. An endpoint is requested without a
question only with other evidence, see :attr:`.model.Endpoint.evidence`. There are four kinds:

- The user has named it.
- It is a file of a folder that the app serves.
- A browser loads it with a page that the user has named.
- An OpenAPI document describes it as read-only.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from html.parser import HTMLParser
from urllib.parse import unquote, urljoin, urlsplit

from .endpoints import NAMED, encoded
from .model import Endpoint, Found, Recording, Unreached

# Called with the safe endpoints and the others. Returns whether the others may be requested.
Allow = Callable[[Sequence[Endpoint], Sequence[Endpoint]], bool]

_SAFE_METHODS = ("GET", "HEAD")
# The files of pages, which no list of routes has.
_MOST_ADDED = 30


class Search:
    """An iterator of the endpoints to request. The files of named pages are added to it."""

    def __init__(
        self, found: Found, host: str, *, unsafe: bool, allow: Allow, follows: bool
    ) -> None:
        """Decide which endpoints may be requested.

        :param host: the app's own, in its URLs.
        :param unsafe: request the others without a question, also by other methods.
        :param follows: add the files that a browser loads with a page that the user has named.
        """
        self._host = host
        self._follows = follows
        listed = [each for each in found if isinstance(each, Endpoint)]
        endpoints = list({(e.method, e.url): e for e in reversed(listed)}.values())[::-1]
        names = {(each.method, each.name) for each in endpoints}
        left = [each for each in found if isinstance(each, Unreached)]
        self.unreached = [each for each in left if (each.method, each.name) not in names]
        readable = [each for each in endpoints if each.method in _SAFE_METHODS]
        safe = [each for each in readable if each.evidence]
        rest = [each for each in (endpoints if unsafe else readable) if each not in safe]
        if rest and not (unsafe or allow(safe, rest)):
            reason = "may change something: --all requests it, too"
            self.unreached += [_left(each, reason) for each in rest]
            rest = []
        reason = "its method changes something: --unsafe requests it, too"
        self.unreached += [_left(e, reason) for e in endpoints if e not in readable and not unsafe]
        self._waiting = deque([*safe, *rest])
        self._known = {(each.method, unquote(each.url)) for each in endpoints}
        self._added = 0
        self.done = 0

    @property
    def total(self) -> int:
        """The number of endpoints to request, as far as they are known."""
        return self.done + len(self._waiting)

    def __iter__(self) -> Iterator[Endpoint]:
        while self._waiting:
            yield self._waiting.popleft()
            self.done += 1

    def learn(self, endpoint: Endpoint, response: Recording) -> None:
        """Add the files that a browser loads with a page."""
        if not self._follows or endpoint.evidence != NAMED or response.status != 200:
            return
        for url in loaded_with(response, endpoint.url, self._host):
            path = url.partition("?")[0]
            if {("GET", unquote(url)), ("GET", unquote(path))} & self._known:
                continue
            self._added += 1
            if self._added > _MOST_ADDED:
                break
            self._known.add(("GET", unquote(url)))
            evidence = f"a browser loads it with {endpoint.url}"
            self._waiting.append(Endpoint(url, path, "link", evidence=evidence))


def _left(endpoint: Endpoint, reason: str) -> Unreached:
    return Unreached(endpoint.name, reason, endpoint.method)


# Limits for one page.
_MOST_LINKS = 1000
_MOST_BYTES = 4 * 1024 * 1024
# A browser loads these as soon as it shows a page (HTML, 4.6.7 and 4.8).
_LOADED_LINKS = frozenset(
    {"stylesheet", "icon", "apple-touch-icon", "mask-icon", "manifest", "modulepreload", "preload"}
)
_LOADED = frozenset({"audio", "img", "script", "source", "track", "video"})


def loaded_with(response: Recording, url: str, host: str) -> list[str]:
    """Return the files that a browser loads with a page: images, scripts, style sheets and media.

    Whoever opens the page requests these, and the app knows. Other links are a visitor's choice,
    such as /logout.

    :param url: the path and query of the page.
    :param host: the app's own. URLs with another one are left out.
    """
    kind = (response.header("Content-Type") or "").partition(";")[0].strip().lower()
    is_page = kind in ("text/html", "application/xhtml+xml")
    if not is_page or response.header("Content-Encoding") is not None:
        return []
    parser = _Page()
    with contextlib.suppress(AssertionError):  # html.parser raises it for some broken markup
        parser.feed(bytes(response.body[:_MOST_BYTES]).decode(errors="replace"))
    base = f"http://{host}{url}"
    with contextlib.suppress(ValueError):
        base = urljoin(base, parser.base)
    paths = (_own_path(link, base, host) for link in parser.found[:_MOST_LINKS])
    return list(dict.fromkeys(path for path in paths if path is not None))


def _own_path(link: str, base: str, own: str) -> str | None:
    """Return the path and query of a link to the app's own host. None for other hosts."""
    try:
        parts = urlsplit(urljoin(base, link.strip()))
        host = parts.netloc.rpartition("@")[2].lower()
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or host != own.lower():
        return None
    return encoded((parts.path or "/") + (f"?{parts.query}" if parts.query else ""))


class _Page(HTMLParser):
    """Collects the URLs that a browser loads with a page."""

    def __init__(self) -> None:
        super().__init__()
        self.base = ""
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value}
        if tag == "base" and not self.base:
            self.base = given.get("href", "")
        kinds = set(given.get("rel", "").lower().split())
        if tag in _LOADED:
            self.found.append(given.get("src", ""))
        elif tag == "link" and _LOADED_LINKS & kinds:
            self.found.append(given.get("href", ""))
        self.found = [url for url in self.found if url]
