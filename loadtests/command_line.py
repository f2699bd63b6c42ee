"""What the command lines here have in common: `--help`, and a refusal of what they do not know."""

from __future__ import annotations

import argparse

__all__ = ["command_line"]


def command_line(module: str, doc: str | None) -> argparse.ArgumentParser:
    """A parser for `python -m MODULE`, to which its own options are added.

    :param doc: the module's docstring, which its help begins with.
    """
    return argparse.ArgumentParser(
        prog=f"python -m {module}", description=doc, formatter_class=_WithDefaults
    )


class _WithDefaults(argparse.RawDescriptionHelpFormatter):
    """Names the default of every option that has one worth naming."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        default = action.default
        if isinstance(default, (int, float, str)) and default not in (False, "", argparse.SUPPRESS):
            return f"{action.help} (%(default)s)"
        return action.help
