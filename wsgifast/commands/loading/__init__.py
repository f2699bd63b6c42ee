"""Loads an app by its name, like gunicorn, uvicorn and Flask; wraps and unwraps it.

`app` makes an app of a target, `modules` imports the module or file that it names, and `servers`
loads it in a process of its own, as a server would with its options and configuration.
"""

from .app import AwaitedApp, LoadedApp, ServerName, load_app, unwrapped, wrapped
from .modules import AppNotLoaded, absolute, described

__all__ = [
    "AppNotLoaded",
    "AwaitedApp",
    "LoadedApp",
    "ServerName",
    "absolute",
    "described",
    "load_app",
    "unwrapped",
    "wrapped",
]
