"""uvicorn.run() from a command line, with the protocol as a class, which every uvicorn takes."""

from __future__ import annotations

import argparse
import pkgutil

import uvicorn

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("app")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--timeout-graceful-shutdown", type=int)
    for name in ("log-level", "http", "loop", "uds", "ssl-certfile", "ssl-keyfile"):
        parser.add_argument(f"--{name}")
    options = vars(parser.parse_args())
    if ":" in options["http"]:
        options["http"] = pkgutil.resolve_name(options["http"])
    uvicorn.run(**{name: value for name, value in options.items() if value is not None})
