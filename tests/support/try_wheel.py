"""Test whether FastWorker of the installed wsgifast can serve.

    python -I tests/support/try_wheel.py

It needs gunicorn. The option -I is needed because modules in this folder have names of Python's
modules.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

_START_S = 60.0
# An app that responds with the place of its server's modules.
_APP = """
from wsgifast.server import server

def app(environ, start_response):
    body = server.__file__.encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
"""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="wsgifast-") as folder:
        Path(folder, "which_modules.py").write_text(_APP)
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        process = subprocess.Popen(
            [
                *(sys.executable, "-I", "-m", "gunicorn", "which_modules:app"),
                *("--bind", f"127.0.0.1:{port}", "--no-control-socket"),
                *("--worker-class", "wsgifast.workers.FastWorker", "--threads", "2"),
            ],
            cwd=folder,
        )
        try:
            _wait(port, process)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=_START_S) as response:
                module = response.read().decode()
        finally:
            process.terminate()
            process.wait(_START_S)
    print(f"FastWorker served with {module}")


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        if process.poll() is not None:
            sys.exit(f"gunicorn ended with status {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.05)
    sys.exit(f"nothing listens on port {port} after {_START_S} s")


if __name__ == "__main__":
    main()
