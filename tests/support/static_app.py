"""StaticFiles over the directory in STATIC_ROOT, for servers in separate processes."""

from __future__ import annotations

import os

from wsgifast import StaticFiles

app = StaticFiles(directory=os.environ["STATIC_ROOT"])
