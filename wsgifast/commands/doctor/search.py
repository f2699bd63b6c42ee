"""Decide which endpoints are requested: safe endpoints, and others if the user allows it.

A GET should not change data (RFC 9110, section 9.2.1), but in many apps it does. The method, the
name and the path of an endpoint do not prove that a request is safe. So the doctor needs other
evidence, or asks the user. There are four kinds of evidence (:attr:`.model.Endpoint.evidence`):

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

# A function that returns whether to request unsafe endpoints: (safe endpoints, other endpoints).
Allow = Callable[[Sequence[Endpoint], Sequence[Endpoint]], bool]

_SAFE_METHODS = ("GET", "HEAD")
# The most files of pages to request.
_MAX_ADDED = 30


class Search:
    """An iterator of the endpoints to request.

    :ivar unreached: the endpoints that are not requested.
    :ivar done: the number of requested endpoints.
    """

    def __init__(
        self, found: Found, host: str, *, unsafe: bool, allow: Allow, follows: bool
    ) -> None:
        """Decide which endpoints are requested.

        :param host: the host of the app in URLs.
        :param unsafe: request all endpoints with all methods, without a call of `allow`.
        :param allow: decides about endpoints without evidence.
        :param follows: also request the files that a browser loads with a page that the user named.
        """
        self._host = host
        self._follows = follows
        listed = [each for each in found if isinstance(each, Endpoint)]
        endpoints = list({(e.method, e.url): e for e in reversed(listed)}.values())[::-1]
        names = {(each.method, each.name) for each in endpoints}
        unreached = [each for each in found if isinstance(each, Unreached)]
        self.unreached = [each for each in unreached if (each.method, each.name) not in names]
        readable = [each for each in endpoints if each.method in _SAFE_METHODS]
        safe = [each for each in readable if each.evidence]
        others = [each for each in (endpoints if unsafe else readable) if each not in safe]
        if others and not (unsafe or allow(safe, others)):
            reason = "may change something: --all requests it, too"
            self.unreached += [_unreached(each, reason) for each in others]
            others = []
        reason = "its method changes something: --unsafe requests it, too"
        unused = [] if unsafe else [each for each in endpoints if each not in readable]
        self.unreached += [_unreached(each, reason) for each in unused]
        self._waiting = deque([*safe, *others])
        self._known = {(each.method, unquote(each.url)) for each in endpoints}
        self._added = 0
        self.done = 0

    @property
    def total(self) -> int:
        """The number of endpoints so far: requested and waiting."""
        return self.done + len(self._waiting)

    def __iter__(self) -> Iterator[Endpoint]:
        while self._waiting:
            yield self._waiting.popleft()
            self.done += 1

    def learn(self, endpoint: Endpoint, response: Recording) -> None:
        """Add the files that a browser loads with a page.

        :param endpoint: the endpoint of the page.
        """
        if not self._follows or endpoint.evidence != NAMED or response.status != 200:
            return
        for url in loaded_with(response, endpoint.url, self._host):
            path = url.partition("?")[0]
            if {("GET", unquote(url)), ("GET", unquote(path))} & self._known:
                continue
            self._added += 1
            if self._added > _MAX_ADDED:
                break
            self._known.add(("GET", unquote(url)))
            evidence = f"a browser loads it with {endpoint.url}"
            self._waiting.append(Endpoint(url, path, "link", evidence=evidence))


def _unreached(endpoint: Endpoint, reason: str) -> Unreached:
    return Unreached(endpoint.name, reason, endpoint.method)


# Limits for one page.
_MAX_LINKS = 1000
_MAX_BYTES = 4 * 1024 * 1024
# A browser loads these links and elements when it shows a page (HTML Standard, 4.6.7 and 4.8).
_LOADED_LINKS = frozenset(
    {"stylesheet", "icon", "apple-touch-icon", "mask-icon", "manifest", "modulepreload", "preload"}
)
_LOADED = frozenset({"audio", "img", "script", "source", "track", "video"})


def loaded_with(response: Recording, url: str, host: str) -> list[str]:
    """Return the URLs that a browser loads with a page: images, scripts, style sheets and media.

    Every visitor of the page requests these files, so a request is safe. Other links, such as
    /logout, are requested only if the visitor follows them.

    :param url: the path and query of the page.
    :param host: the host of the app. URLs with another host are omitted.
    """
    kind = (response.header("Content-Type") or "").partition(";")[0].strip().lower()
    is_page = kind in ("text/html", "application/xhtml+xml")
    if not is_page or response.header("Content-Encoding") is not None:
        return []
    parser = _Page()
    with contextlib.suppress(AssertionError):  # html.parser raises it for some broken markup
        parser.feed(bytes(response.body[:_MAX_BYTES]).decode(errors="replace"))
    base = f"http://{host}{url}"
    with contextlib.suppress(ValueError):
        base = urljoin(base, parser.base)
    paths = (_own_path(link, base, host) for link in parser.found[:_MAX_LINKS])
    return list(dict.fromkeys(path for path in paths if path is not None))


def _own_path(link: str, base: str, own: str) -> str | None:
    """Return the path and query of a link to the host of the app. None for other hosts."""
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
