"""Sizes for people to read."""

from __future__ import annotations

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def size_text(size: float) -> str:
    """Such as "1023 B", "8 KiB" and "1.5 MiB".

    :param size: in bytes.
    """
    if size < 1024:
        return f"{size:.0f} B"
    power = 0
    while size >= 1024**2 and power < len(_UNITS) - 1:
        size /= 1024
        power += 1
    return f"{size / 1024:.1f}".removesuffix(".0") + f" {_UNITS[power]}"
