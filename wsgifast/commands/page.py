"""HTML pages for reports. A page is one file and loads no other files.

The functions for pages and tables expect HTML: callers escape texts with :func:`escaped`.
"""

from __future__ import annotations

import html
import time
from collections.abc import Iterable, Sequence

from .. import __version__
from .terminal import lines_of

_STYLE = """
:root { color-scheme: light dark; --page: #fbfaf8; --card: #fff; --ink: #1d2126; --soft: #5d6670;
  --line: #e2e0db; --better: #0b7a5c; --wrong: #b3382c; --slow: #a86a00;
  --info: #2b6cb0; }
@media (prefers-color-scheme: dark) { :root { --page: #14171a; --card: #1c2024; --ink: #e9ebed;
  --soft: #a0a9b2; --line: #31373d; --better: #3fc59b; --wrong: #f08a7c;
  --slow: #e0ae5a; --info: #8fbdf0; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 76rem; background: var(--page);
  color: var(--ink); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.2; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 1.2rem 0 .3rem; }
h3 { font-size: 1rem; margin: .6rem 0 0; overflow-wrap: anywhere; }
p { margin: .2rem 0 .6rem; } li { margin: .2rem 0; overflow-wrap: anywhere; }
p, li, svg { max-width: 52rem; }
.soft { color: var(--soft); font-size: .9rem; }
article { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: .8rem 1rem; margin: .7rem 0; }
.wrong, .slow, .info { border-left-width: 5px; }
.wrong { border-left-color: var(--wrong); } .slow { border-left-color: var(--slow); }
.info { border-left-color: var(--info); }
.id { color: var(--soft); font-weight: 500; margin-right: .4rem; }
details { margin-top: .4rem; } summary { cursor: pointer; color: var(--soft); font-size: .9rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .85rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .55rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 500; }
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) { text-align: left; }
code { font-size: .9em; overflow-wrap: anywhere; }
@media (max-width: 40rem) { article { padding: .6rem; } th, td { padding: .3rem .25rem; }
  td:first-child, td:nth-child(2) { white-space: normal; } }
"""


def escaped(text: str) -> str:
    """Return text as HTML. Quotes are escaped, so the result may also be used in an attribute."""
    return html.escape(lines_of(text))


def page(title: str, body: str, *, by: str, note: str = "") -> str:
    """Return a whole page. It is light or dark like the reader's system.

    :param title: the title as text.
    :param body: the body as HTML.
    :param by: the command that makes the page.
    :param note: a text for the end of the page.
    """
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escaped(title)}: {escaped(by)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{escaped(title)}</h1>
{body}
<p class="soft">{escaped(by)} {__version__}, {when}. {escaped(note)}</p>
</body>
</html>
"""


def table(columns: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table that scrolls horizontally if it is too wide. The cells are HTML."""
    before = "".join(f"<th>{column}</th>" for column in columns)
    lines = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>" for cells in rows)
    return (
        f'<div class="scroll"><table><thead><tr>{before}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )
