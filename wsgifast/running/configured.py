"""What gunicorn's configuration sets, of what `wsgifast run` has defaults for.

    python -m wsgifast.running.configured GUNICORN'S ARGUMENT ...

prints it as JSON. gunicorn itself reads the configuration: the file, GUNICORN_CMD_ARGS and the
command line. In a process of its own, as a file may do anything, such as gevent's monkey-patching.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

# Those that `wsgifast run` has defaults for.
NAMES = ("worker_class", "threads", "bind")


def configured(arguments: Sequence[str]) -> dict[str, Any]:
    """The settings of NAMES that have a value from anywhere, with it; a worker class by its name.

    None of them where gunicorn refuses the configuration, or ends at once, as with --version: the
    server that is started then says so.

    :param arguments: of gunicorn's command.
    """
    done = subprocess.run(
        [sys.executable, "-m", __name__, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {}
    return found


def main() -> None:
    """Print what is set."""
    from gunicorn.app.wsgiapp import WSGIApplication

    class Application(WSGIApplication):  # type: ignore[misc]
        def load_default_config(self) -> None:
            super().load_default_config()
            self.found: set[str] = set()
            change = self.cfg.set

            def noted(name: str, value: object) -> None:
                change(name, value)
                self.found.add(name)

            self.cfg.set = noted

    answers = os.dup(1)
    os.dup2(2, 1)  # whatever a file prints is no answer
    application = Application()
    values = {
        "worker_class": application.cfg.worker_class_str,
        "threads": application.cfg.threads,
        "bind": application.cfg.bind,
    }
    told = {name: values[name] for name in NAMES if name in application.found}
    os.write(answers, json.dumps(told).encode())
    os._exit(0)  # a file's threads are not waited for


if __name__ == "__main__":
    main()
