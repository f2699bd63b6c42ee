"""gunicorn's hooks for requests, which may change the request that the app then gets.

gthread makes the environ from the request after the pre_request hook. FastWorker has the environ's
keys from the parser, so it compares the headers before and after the hook.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from gunicorn.config import PostRequest, PreRequest
from gunicorn.glogging import Logger

from ..http.request_headers import header_fields
from ..server.channel import AcceptedSocket
from ..server.receiving import Exchange
from .environ import AppSocket
from .gunicorn_parser import proxy_addresses
from .gunicorn_support import Settings


def pre_request(
    settings: Settings, worker: Any
) -> Callable[[Exchange, AcceptedSocket], object] | None:
    """Return a function that calls the hook before the app, and applies its changes.

    :returns: None if the hook is gunicorn's default and its debug line would not be logged.
    """
    hook = settings.pre_request
    if hook is PreRequest.default:  # it changes nothing
        if not _logs_debug(worker.log):
            return None
        return lambda exchange, connection: hook(worker, exchange.req)

    def call(exchange: Exchange, connection: AcceptedSocket) -> None:
        req = exchange.req
        sock = connection.app_socket
        if sock is None:
            sock = connection.app_socket = AppSocket(connection)
        req.unreader.sock = sock
        headers, proxy = list(req.headers), req.proxy_protocol_info
        hook(worker, req)
        if req.headers != headers:
            _apply_headers(exchange, headers)
        if req.proxy_protocol_info is not proxy:
            exchange.proxy = proxy_addresses(req)

    return call


def post_request(settings: Settings, worker: Any) -> Callable[..., object] | None:
    """Return a function that calls the hook after the app, or None for gunicorn's empty hook."""
    hook = settings.post_request
    if hook is PostRequest.default:
        return None

    def call(req: Any, environ: dict[str, Any], resp: Any, number: int) -> None:
        req.unreader.sock = environ.get("gunicorn.socket")
        worker.of_hook.number = number
        try:
            hook(worker, req, environ, resp)
        finally:
            worker.of_hook.number = 0

    return call


def _apply_headers(exchange: Exchange, before: list[tuple[str, str]]) -> None:
    """Bring the environ's keys up to date with the headers that a hook has changed.

    :param before: the headers before the hook. The keys of the others stay as they are: a body that
        was received whole has a CONTENT_LENGTH of its own.
    """
    req, fields = exchange.req, exchange.fields
    old, new = header_fields(before), header_fields(req.headers)
    for key in old.keys() - new.keys():
        fields.pop(key, None)
    for key, value in new.items():
        if old.get(key) != value:
            fields[key] = value
    if old.get("HTTP_SCRIPT_NAME") != new.get("HTTP_SCRIPT_NAME"):
        names = [value for name, value in req.headers if name == "SCRIPT_NAME"]
        exchange.script_name = names[-1] if names else None


def _logs_debug(log: Any) -> bool:
    if getattr(type(log), "debug", None) is not Logger.debug:
        return True  # a method of another class, which may do anything
    return bool(log.error_log.isEnabledFor(logging.DEBUG))
