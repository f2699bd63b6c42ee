"""Call gunicorn's hooks pre_request and post_request.

The pre_request hook may change the request. gthread makes the environ after this hook. But
FastWorker's parser has made the environ keys of the headers before the hook. So FastWorker compares
the request's headers before and after the hook, and applies the changes to the environ's keys.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from gunicorn.config import PostRequest, PreRequest
from gunicorn.glogging import Logger

from ..http.request_headers import header_fields
from ..server.endpoint import Endpoint
from ..server.receiving import Exchange
from .environ import AppSocket
from .gunicorn_parser import proxy_addresses
from .gunicorn_support import Settings


def pre_request(settings: Settings, worker: Any) -> Callable[[Exchange, Endpoint], object] | None:
    """Return a function that calls the hook and then applies the hook's changes to the environ.

    :returns: None if the hook is gunicorn's default and its debug message would not be logged.
    """
    hook = settings.pre_request
    if hook is PreRequest.default:  # it changes nothing
        if not _logs_debug(worker.log):
            return None
        return lambda exchange, connection: hook(worker, exchange.req)

    def call(exchange: Exchange, connection: Endpoint) -> None:
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
        worker.hook_request.number = number
        try:
            hook(worker, req, environ, resp)
        finally:
            worker.hook_request.number = 0

    return call


def _apply_headers(exchange: Exchange, before: list[tuple[str, str]]) -> None:
    """Apply a hook's changes of the request's headers to the environ's keys.

    The keys of unchanged headers do not change. CONTENT_LENGTH may differ from the header, because
    the server sets it if it has received a whole chunked body.

    :param before: the headers before the hook.
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
        return True  # a subclass's method may write elsewhere
    return bool(log.error_log.isEnabledFor(logging.DEBUG))
