"""Wrapped apps for live servers, each written by the request that asks for it."""

from __future__ import annotations

import json
import wsgiref.util
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from tests.support.scripts import Script, ScriptedApp
from wsgifast import WSGIFast

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment


def target_of(script: Script) -> str:
    """The URL at which :data:`app` plays a script."""
    fields = asdict(script)
    for name in ("pieces", "written"):
        fields[name] = [piece.hex() for piece in fields[name]]
    return "/?" + quote(json.dumps(fields))


def _raw(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
    environ.setdefault("wsgi.file_wrapper", wsgiref.util.FileWrapper)
    fields = json.loads(unquote(environ["QUERY_STRING"]))
    for name in ("pieces", "written"):
        fields[name] = tuple(bytes.fromhex(piece) for piece in fields[name])
    return ScriptedApp(Script(**fields))(environ, start_response)


app = WSGIFast(_raw)
