"""StaticFiles over the directory that STATIC_ROOT names, for servers that are processes."""

from __future__ import annotations

import os

from wsgifast import StaticFiles

app = StaticFiles(directory=os.environ["STATIC_ROOT"])
