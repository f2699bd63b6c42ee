"""The script in which mod_wsgi finds its `application`, an app that the environment names."""

from __future__ import annotations

import importlib
import os

_module, _, _name = os.environ["MOD_WSGI_APP"].partition(":")
application = getattr(importlib.import_module(_module), _name)
