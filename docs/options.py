"""The tables of options in the reference pages, made from the rows that declare the options."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wsgifast.files.site_options import OPTIONS as STATIC_FILES
from wsgifast.files.site_options import REQUIRED
from wsgifast.server_options import OPTIONS, SHARED

__all__ = ["with_tables"]

_REFERENCE = Path(__file__).resolve().parent / "reference"
_END = "<!-- end of the options -->"
_PLACE = re.compile(rf"(<!-- options of (.+?) -->)\n.*?{_END}", re.DOTALL)


def with_tables(name: str) -> str:
    """Return a page of docs/reference with its tables in their places."""
    text = (_REFERENCE / name).read_text(encoding="utf-8")
    return _PLACE.sub(lambda match: f"{match[1]}\n\n{_table(match[2])}\n\n{_END}", text)


def _table(name: str) -> str:
    """Return a table.

    :param name: "asgifast", "FastWorker: limits", or "FastWorker: " or "StaticFiles: " and a
        section.
    """
    if name.startswith("StaticFiles: "):
        rows = [
            (f"`{option.name}`", option.type, _default(option.default), option.help)
            for option in STATIC_FILES.values()
            if option.section == name.removeprefix("StaticFiles: ")
        ]
        return _markdown(("option", "type", "default", "meaning"), rows)
    if name == "asgifast":
        rows = [
            (
                f"`{option.name}`",
                option.kind.type.removesuffix(" or None")
                + (" or None" if option.default_of_asgi is None else ""),
                _value(option.default_of_asgi, infinity="math.inf"),
                f"{option.help} {option.asgi_note}",
            )
            for option in SHARED.values()
        ]
        return _markdown(("attribute", "type", "default", "meaning"), rows)
    section = name.removeprefix("FastWorker: ")
    if section == "limits":
        limits = [
            (f"`{option.name}`", limit.client, _code(limit.log), _code(limit.metric))
            for option in OPTIONS.values()
            if (limit := option.at_limit) is not None
        ]
        titles = ("option", "the client gets", "the line in the error log contains", "metric")
        return _markdown(titles, limits)
    rows = [
        (
            f"`{option.name}`",
            option.kind.type,
            _value(option.default, infinity='float("inf")'),
            f"{option.help} {option.note}",
        )
        for option in OPTIONS.values()
        if option.section == section
    ]
    return _markdown(("option", "type", "default", "meaning"), rows)


def _markdown(titles: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [titles, ("---",) * len(titles), *rows]
    texts = ["| " + " | ".join(cell.strip() for cell in line) + " |" for line in lines]
    texts[1] = texts[1].replace(" ", "")
    return "\n".join(texts)


def _code(text: str) -> str:
    return f"`{text}`" if text else "no line"


def _default(value: Any) -> str:
    if value is REQUIRED:
        return "required"
    return f'`"{value}"`' if isinstance(value, str) else _value(value, infinity="math.inf")


def _value(value: Any, *, infinity: str) -> str:
    """Return a default as a configuration file may have it."""
    if value == math.inf:
        return f"`{infinity}`"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        for power in (30, 20, 10):
            if value and value % 2**power == 0:
                count = value >> power
                return f"`2**{power}`" if count == 1 else f"`{count} * 2**{power}`"
    return f"`{value}`"
