"""Records the terminal of the first pages: the doctor and the benchmark on the tutorial's app.

    python -m docs.terminal       needs the packages of `make docs`, a quiet machine and two minutes

The session is real: the commands run in a pseudo-terminal, in a folder with the tutorial's shop.py.
What they print is kept in assets/terminal.txt, with its colours, and drawn as an SVG for light and
for dark pages.
"""

from __future__ import annotations

import os
import pty
import re
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from .pages import DOCS

COLUMNS = 100
COMMANDS = (
    "wsgifast doctor shop:app /orders /manual.pdf",
    "wsgifast bench shop:app /orders --coalesce",
)
SESSION = DOCS / "assets" / "terminal.txt"
# Background, text, and the eight colours of ANSI, as in the charts.
_COLOURS = {
    "light": ("#f6f8f9", "#1d2126", "#b3382c", "#0b7a5c", "#a86a00", "#2b5fa8"),
    "dark": ("#1b2127", "#e9ebed", "#f08a7c", "#3fc59b", "#e0ae5a", "#7db4f5"),
}
# rich's own has a web font, which pictures in a page cannot load.
_FORMAT = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<title>wsgifast doctor finds what is slow; wsgifast bench measures what helps</title>
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
 font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def record() -> str:
    """Run the commands, and return the terminal's content at the end of each."""
    tutorial = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    found = re.search(r"^```python\n(# shop\.py\n.*?)^```", tutorial, re.MULTILINE | re.DOTALL)
    if found is None:
        raise SystemExit("docs/tutorial.md has no block that begins with # shop.py")
    shown = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "shop.py").write_text(found[1])
        (Path(folder) / "manual.pdf").write_bytes(os.urandom(5_000_000))
        for command in COMMANDS:
            shown += [f"\x1b[1m$ {command}\x1b[0m", _output(command, folder), ""]
    return "\n".join(shown).rstrip() + "\n"


def _output(command: str, folder: str) -> str:
    """Return the final lines of the terminal. A rewritten line replaces the earlier one."""
    blocks: list[bytes] = []

    def read(terminal: int) -> bytes:
        blocks.append(os.read(terminal, 65_536))
        return blocks[-1]  # shown here, too

    program, *arguments = command.split()
    # stty: a pseudo-terminal has no width until it is given one.
    script = f'stty cols {COLUMNS}; cd "$0"; exec "$@"'
    wsgifast = [sys.executable, "-m", program, *arguments]
    status = pty.spawn(["sh", "-c", script, folder, *wsgifast], read)
    text = b"".join(blocks).decode().replace("\r\n", "\n")
    if os.waitstatus_to_exitcode(status) not in (0, 1):
        raise SystemExit(f"{command}: {text}")
    lines = [line.rpartition("\r")[2].replace("\x1b[K", "") for line in text.split("\n")]
    return "\n".join(lines).strip("\n")


def draw(session: str, theme: str) -> str:
    """The SVG of a session."""
    background, ink, red, green, yellow, blue = (
        (int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16))
        for colour in _COLOURS[theme]
    )
    ansi = [ink, red, green, yellow, blue, blue, blue, ink]
    with open(os.devnull, "w") as nowhere:
        console = Console(
            record=True, width=COLUMNS, file=nowhere, force_terminal=True, color_system="standard"
        )
        console.print(Text.from_ansi(session), end="", soft_wrap=False)
    return console.export_svg(
        title="", theme=TerminalTheme(background, ink, ansi, ansi), code_format=_FORMAT,
        unique_id=f"terminal-{theme}",
    )  # fmt: skip


if __name__ == "__main__":
    if "--draw" not in sys.argv:
        SESSION.write_text(record(), encoding="utf-8")
    for name in _COLOURS:
        picture = draw(SESSION.read_text(encoding="utf-8"), name)
        (SESSION.parent / f"terminal-{name}.svg").write_text(picture, encoding="utf-8")
