"""Run the Python of a page in a folder: `python -m tests.docs.run_python PAGE FOLDER`.

All blocks share one namespace. A block that names a file is also written to that file, and other
blocks may import it. A block without a name belongs to the file above it.
"""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path

from .blocks import Block, blocks, files_in, patched


def main(page: str, folder: str) -> None:
    os.chdir(folder)
    sys.path.insert(0, folder)
    module = sys.modules["page"] = types.ModuleType("page")
    last = None
    for block in blocks(page):
        if block.language == "files":
            for name, text in files_in(block):
                Path(name).write_text(text)
        elif block.changes:
            path = Path(block.changes)
            path.write_text(patched(block, path.read_text()))
            exec(compile(path.read_text(), path.name, "exec"), vars(module))
        elif block.language == "python" and not block.at_the_end:  # the commands of its file run it
            if not block.hidden:
                last = block.name or last
                _write(block, last)
                module.__file__ = str(last and Path(last).absolute())
            _run(block, module)


def _write(block: Block, name: str | None) -> None:
    if name is not None:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if block.name is None else "w") as file:
            file.write(block.text)


def _run(block: Block, module: types.ModuleType) -> None:
    padding = "\n" * block.line  # so that tracebacks show the lines of the page
    exec(compile(padding + block.text, str(block), "exec"), vars(module))
    for name in [name for name in vars(module) if name.startswith("test_")]:
        vars(module).pop(name)()


if __name__ == "__main__":
    main(*sys.argv[1:])
