"""The pictures of the explanations, drawn for light and for dark pages: `make docs` writes them.

They are narrow, with large text, so that they can be read on a phone.
"""

from __future__ import annotations

import html
import importlib.metadata
from collections.abc import Callable, Mapping
from functools import partial

from docs.benchmarks.chart import THEMES

WIDTH_PX = 560
_FONT = 'font-family: system-ui, -apple-system, "Segoe UI", sans-serif; font-size: 15px'


class Picture:
    """An SVG to which shapes are added. Positions and sizes are in pixels."""

    def __init__(self, title: str, height: float, colours: Mapping[str, str]) -> None:
        self._title, self._height, self._colours = title, height, colours
        self._shapes: list[str] = []

    def text(
        self, x: float, y: float, text: str, *, ink: str = "ink", anchor: str = "start"
    ) -> None:
        self._shapes.append(
            f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{self._colours[ink]}">'
            f"{html.escape(text)}</text>"
        )

    def box(
        self, x: float, y: float, width: float, height: float, *lines: str, ink: str = "soft"
    ) -> None:
        """A box with lines of text in its middle."""
        self._shapes.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="none" '
            f'stroke="{self._colours[ink]}" stroke-width="1.5"/>'
        )
        middle = y + height / 2 + 5 - (len(lines) - 1) * 9.5
        for number, line in enumerate(lines):
            kind = "soft" if number else "ink"
            self.text(x + width / 2, middle + number * 19, line, anchor="middle", ink=kind)

    def bar(self, x: float, y: float, width: float, *, ink: str, height: float = 16) -> None:
        self._shapes.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="2" '
            f'fill="{self._colours[ink]}"/>'
        )

    def line(self, *points: tuple[float, float], ink: str = "line", dashed: bool = False) -> None:
        places = " ".join(f"{x},{y}" for x, y in points)
        dash = ' stroke-dasharray="4 4"' if dashed else ""
        self._shapes.append(
            f'<polyline points="{places}" fill="none" stroke="{self._colours[ink]}" '
            f'stroke-width="1.5"{dash}/>'
        )

    def arrow(
        self,
        start: tuple[float, float],
        end: tuple[float, float],
        *,
        ink: str = "soft",
        dashed: bool = False,
    ) -> None:
        (x, y), (to_x, to_y) = start, end
        length = ((to_x - x) ** 2 + (to_y - y) ** 2) ** 0.5
        along = (to_x - x) / length, (to_y - y) / length
        across = -along[1], along[0]
        back = to_x - 9 * along[0], to_y - 9 * along[1]
        corners = [
            (to_x, to_y),
            *((back[0] + s * 4 * across[0], back[1] + s * 4 * across[1]) for s in (1, -1)),
        ]
        self.line(start, back, ink=ink, dashed=dashed)
        places = " ".join(f"{px:.1f},{py:.1f}" for px, py in corners)
        self._shapes.append(f'<polygon points="{places}" fill="{self._colours[ink]}"/>')

    def lanes(self, top: float, bottom: float, title: str, ends: Mapping[str, float]) -> None:
        """A line down for each end of a connection, by its name and its place across."""
        self.text(0, top - 22, title)
        for name, x in ends.items():
            self.text(x, top, name, anchor="middle", ink="soft")
            self.line((x, top + 8), (x, bottom))

    def svg(self) -> str:
        title = html.escape(self._title)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {WIDTH_PX} '
            f'{self._height}" width="{WIDTH_PX}" height="{self._height}"><title>{title}</title>'
            f"<style>text {{ {_FONT} }}</style>\n" + "\n".join(self._shapes) + "\n</svg>\n"
        )


def request(colours: Mapping[str, str]) -> str:
    """A request's way through FastWorker."""
    p = Picture("The path of a request: client, kernel, FastWorker and app", 392, colours)
    p.box(0, 30, 108, 332, "client")
    p.box(138, 30, 108, 332, "kernel", "sockets,", "page cache")
    p.box(276, 30, 284, 332, ink="better")
    p.text(418, 20, "FastWorker: a few threads", anchor="middle")
    p.box(292, 46, 252, 62, "leader: polls, receives, parses", "waiting connections: no thread")
    p.box(292, 146, 252, 62, "the same thread runs the app", "another thread leads meanwhile")
    p.box(
        292,
        246,
        252,
        100,
        "output queue",
        "memory, then an unnamed file,",
        "a file: descriptor and offset",
    )
    p.arrow((108, 77), (138, 77))
    p.arrow((246, 77), (292, 77))
    p.text(418, 132, "request is complete", anchor="middle", ink="soft")
    p.arrow((324, 108), (324, 146))
    p.text(418, 232, "body is classified, once", anchor="middle", ink="soft")
    p.arrow((324, 208), (324, 246))
    p.arrow((292, 296), (246, 296), ink="better")
    p.arrow((138, 296), (108, 296), ink="better")
    p.text(
        0,
        384,
        "Bytes that the kernel does not accept yet wait in the queue.",
        ink="soft",
    )
    return p.svg()


def stall(colours: Mapping[str, str]) -> str:
    """Nagle's algorithm and delayed acknowledgements."""
    p = Picture("Two small sends wait 40 ms for each other, and one send does not", 330, colours)
    client, server = 80, 480
    ends = {"client": client, "server": server}
    p.lanes(44, 214, "Headers and body in two sends, with Nagle's algorithm", ends)
    p.arrow((client, 62), (server, 74))
    p.text(280, 58, "request", anchor="middle", ink="soft")
    p.arrow((server, 82), (client, 94), ink="better")
    p.text(280, 107, "headers", anchor="middle")
    p.bar(server - 5, 90, 10, ink="wrong", height=84)
    p.text(server + 12, 126, "body", ink="wrong")
    p.text(server + 12, 144, "waits", ink="wrong")
    p.bar(client - 5, 98, 10, ink="slow", height=64)
    p.text(client - 12, 126, "40 ms", anchor="end", ink="slow")
    p.arrow((client, 164), (server, 176), dashed=True)
    p.text(280, 160, "acknowledgement", anchor="middle", ink="soft")
    p.arrow((server, 182), (client, 194), ink="better")
    p.text(280, 208, "body", anchor="middle")

    p.lanes(264, 322, "In one send", ends)
    p.arrow((client, 282), (server, 292))
    p.arrow((server, 298), (client, 310), ink="better")
    p.text(280, 322, "headers and body", anchor="middle")
    return p.svg()


def threads(colours: Mapping[str, str]) -> str:
    """Four slow downloads, on four threads."""
    p = Picture(
        "Four slow downloads occupy four threads of gthread, and none of FastWorker", 330, colours
    )
    left, right = 84, 556

    def axis(top: float, title: str) -> None:
        p.text(0, top - 14, title)
        for number in range(4):
            y = top + number * 24
            p.text(0, y + 13, f"thread {number + 1}", ink="soft")
            p.line((left, y + 8), (right, y + 8))

    axis(30, "gthread")
    for number in range(4):
        p.bar(left + 6 + number * 14, 30 + number * 24, right - left - 6 - number * 14, ink="slow")
    p.text(left + 6, 142, "slow downloads: each occupies a thread until its last byte", ink="slow")
    axis(190, "FastWorker")
    for number in range(4):
        p.bar(left + 6 + number * 14, 190 + number * 24, 5, ink="slow")
    for number, places in enumerate(((70, 210, 380), (150, 260), (110, 330, 430), (190, 300))):
        for place in places:
            p.bar(left + place, 190 + number * 24, 26, ink="better")
    p.text(left + 6, 302, "the same downloads: a few microseconds each,", ink="slow")
    p.text(left + 6, 321, "then socket events send them, and other requests run", ink="better")
    return p.svg()


def deltas(colours: Mapping[str, str]) -> str:
    """Two visits, and a release between them."""
    p = Picture("A browser with release 1 gets only the difference to release 2", 470, colours)
    browser, server = 96, 464
    ends = {"browser": browser, "server": server}

    def ask(y: float, *texts: str) -> None:
        p.arrow((browser, y), (server, y + 8))
        for number, text in enumerate(texts):
            p.text(280, y - 5 - 19 * (len(texts) - 1 - number), text, anchor="middle")

    p.lanes(44, 206, "The first visit", ends)
    ask(76, "GET /static/app.0a1b2c3d.js")
    p.arrow((server, 142), (browser, 150), ink="slow")
    p.text(280, 118, 'Use-As-Dictionary: match="/static/app.*.js"', anchor="middle")
    p.text(280, 137, "Content-Encoding: br", anchor="middle", ink="slow")
    p.bar(browser + 8, 158, server - browser - 16, ink="slow")
    p.text(280, 194, "1,080 kB", anchor="middle", ink="slow")

    p.line((0, 222), (560, 222), dashed=True)
    p.text(
        280, 246, "release 2: app.4e5f6a7b.js, beside app.0a1b2c3d.js", anchor="middle", ink="soft"
    )
    p.line((0, 260), (560, 260), dashed=True)

    p.lanes(304, 466, "The next visit", ends)
    ask(356, "GET /static/app.4e5f6a7b.js", "Available-Dictionary: :SHA-256 of release 1:")
    p.arrow((server, 402), (browser, 410), ink="better")
    p.text(280, 397, "Content-Encoding: dcz", anchor="middle", ink="better")
    p.bar(browser + 8, 418, (server - browser - 16) * 74 / 1080, ink="better")
    p.text(280, 454, "74 kB: the difference to release 1", anchor="middle", ink="better")
    return p.svg()


def badge(label: str, value: str) -> str:
    """A small picture of a fact about the project, which asks no service."""
    left, right = 7 * len(label) + 14, 7 * len(value) + 14
    text = (
        'y="14" text-anchor="middle" fill="#fff" font-family="Verdana, sans-serif" font-size="11"'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img">'
        f"<title>{label}: {value}</title>"
        f'<rect width="{left + right}" height="20" rx="3" fill="#0b7a5c"/>'
        f'<path d="M3 0h{left - 3}v20H3a3 3 0 0 1-3-3V3a3 3 0 0 1 3-3z" fill="#49525c"/>'
        f'<text x="{left / 2}" {text}>{label}</text>'
        f'<text x="{left + right / 2}" {text}>{value}</text></svg>\n'
    )


def _badges() -> dict[str, str]:
    """Return the names and texts of the badges, from the project's own metadata."""
    metadata = importlib.metadata.metadata("wsgifast")
    prefix = "Programming Language :: Python :: 3."
    minors = [int(c.removeprefix(prefix)) for c in metadata.get_all("Classifier", [])
              if c.startswith(prefix)]  # fmt: skip
    return {
        "python": f"3.{min(minors)} to 3.{max(minors)}",
        "licence": metadata["License-Expression"],
        "dependencies": "none",
        "types": "mypy --strict",
    }


PICTURES: Mapping[str, Callable[[Mapping[str, str]], str]] = {
    f"assets/{draw.__name__}": draw for draw in (request, stall, threads, deltas)
}


def pictures() -> dict[str, Callable[[], str]]:
    """Return the pictures' file names in docs/, with a function for the content of each."""
    badges: dict[str, Callable[[], str]] = {
        f"assets/badge-{label}.svg": partial(badge, label, value)
        for label, value in _badges().items()
    }
    return badges | {
        f"{name}-{theme}.svg": partial(draw, colours)
        for name, draw in PICTURES.items()
        for theme, colours in THEMES.items()
    }
