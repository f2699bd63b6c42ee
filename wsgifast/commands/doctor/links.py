"""The links in an answer: what a browser loads with a page, and what else the page leads to."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urljoin, urlsplit

from .endpoints import encoded
from .model import Recording

# Of a page; a list of a thousand items has the same endpoint a thousand times.
_MOST_LINKS = 1000
_MOST_BYTES = 4 * 1024 * 1024
# What a browser loads without being asked as soon as it shows a page (HTML, 4.6.7 and 4.8).
_LOADED_LINKS = frozenset(
    {"stylesheet", "icon", "apple-touch-icon", "mask-icon", "manifest", "modulepreload", "preload"}
)
_LOADED = {
    "img": ("src",),
    "script": ("src",),
    "source": ("src",),
    "video": ("src", "poster"),
    "audio": ("src",),
    "track": ("src",),
}
_LED_TO = {"a": "href", "area": "href", "iframe": "src", "frame": "src", "link": "href"}


@dataclass
class Links:
    """Paths of an answer's own host, each once, in their order.

    :ivar loaded: by a browser that shows the page: images, scripts, style sheets, icons, media.
        Whoever opens the page requests these, and the app knows.
    :ivar others: what a visitor may choose, such as a link to /logout.
    """

    loaded: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)


def links_of(answer: Recording, url: str, host: str) -> Links:
    """The links of an answer: a page's, those in JSON, and a redirect's.

    :param url: path and query that were requested.
    :param host: the app's own; URLs with another one are left out.
    """
    links = Links()
    base = f"http://{host}{url}"
    found: list[tuple[str, list[str]]] = []
    kind = (answer.header("Content-Type") or "").partition(";")[0].strip().lower()
    if answer.header("Content-Encoding") is None:
        text = bytes(answer.body[:_MOST_BYTES]).decode(errors="replace")
        if kind in ("text/html", "application/xhtml+xml"):
            parser = _Page(links)
            with contextlib.suppress(AssertionError):  # of html.parser, at some broken markup
                parser.feed(text)
            with contextlib.suppress(ValueError):
                base = urljoin(base, parser.base)
            found = parser.found
        elif kind == "application/json" or kind.endswith("+json"):
            found = [(each, links.others) for each in _strings(text)]
    location = answer.header("Location")
    if location is not None:
        found.append((location, links.others))
    seen: set[str] = set()
    for link, group in found[:_MOST_LINKS]:
        path = _own_path(link, base, host)
        if path is not None and path not in seen:
            seen.add(path)
            group.append(path)
    return links


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
    """Collects the links of a page, each with the list to which it belongs."""

    def __init__(self, links: Links) -> None:
        super().__init__()
        self.base = ""
        self.found: list[tuple[str, list[str]]] = []
        self._links = links

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value}
        if tag == "base" and not self.base:
            self.base = given.get("href", "")
        loaded = _LOADED.get(tag, ())
        if tag == "link" and _LOADED_LINKS & set(given.get("rel", "").lower().split()):
            loaded = ("href",)
        elif tag == "input" and given.get("type", "").lower() == "image":
            loaded = ("src",)
        if loaded:
            urls = [given[name] for name in loaded if name in given]
            if tag in ("img", "source"):
                urls += _sources(given.get("srcset", ""))
            self.found += [(url, self._links.loaded) for url in urls]
        elif tag in _LED_TO and _LED_TO[tag] in given:
            self.found.append((given[_LED_TO[tag]], self._links.others))


def _sources(srcset: str) -> Iterator[str]:
    """The URLs of `srcset`: candidates end with a comma, and may have a width or a density."""
    for candidate in re.split(r",\s+|\s+[0-9.]+[wx]\s*,", srcset):
        if candidate.strip():
            yield candidate.split()[0]


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
