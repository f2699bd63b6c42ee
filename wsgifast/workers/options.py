"""Check FastWorker's options, and read them from gunicorn's configuration file.

The options are class attributes. gunicorn's configuration file may define them as variables, next
to gunicorn's settings. gunicorn runs this file as a module, and ignores unknown names. FastWorker
reads the variables when gunicorn loads the worker class, which happens at the start and at each
reload.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import logging
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import TIMEOUT_MAX
from typing import Any

from ..checks import configuration_names, is_number, needs
from ..errors import ConfigurationError
from ..metrics.setup import metrics_address
from ..server.http2 import check_h2
from ..server.options import Options
from ..server.receiving import Parser
from ..server_options import OPTIONS, check_probe_paths, options_of_environment
from .gunicorn_parser import GunicornParser
from .gunicorn_support import Settings
from .gunicorn_version import is_tested

_WITH_UNITS = [name for name in OPTIONS if name.endswith(("_bytes", "_s"))]
# A name is misspelt if difflib finds a higher similarity with an option. A subclass may have other
# attributes, such as memory_limit_bytes (0.82) or db_timeout_s (0.85), whose similarity is lower.
_MIN_SIMILARITY = 0.87


class InvalidWorkerOption(ConfigurationError, RuntimeError):
    """Raised for an attribute of FastWorker with an unknown name or a value that is not allowed.

    It is a RuntimeError, because gunicorn's command prints such errors without a traceback.
    """


def declare_options(base: type) -> None:
    """Set the options with their defaults as attributes of FastWorker."""
    for name, option in OPTIONS.items():
        setattr(base, name, option.default)


def check_attributes(worker: Any, base: type) -> None:
    """Check the attributes of a worker class.

    :param base: FastWorker. Its attributes and those of its subclasses are checked.
    :raises InvalidWorkerOption: for the first wrong attribute.
    """
    for kind in worker.__mro__:
        if issubclass(kind, base):
            check_names(vars(kind))
    for name, option in OPTIONS.items():
        value = getattr(worker, name)
        if not option.kind.is_allowed(value):
            raise InvalidWorkerOption(
                f"FastWorker.{name}={value!r}: expected {option.kind.expected}"
            )
    try:
        check_probe_paths(
            effective_value(worker, "health_path"), effective_value(worker, "ready_path")
        )
        if worker.metrics_bind is not None:
            metrics_address(worker.metrics_bind, "FastWorker.metrics_bind")
    except ConfigurationError as error:
        raise InvalidWorkerOption(str(error)) from None


def check_settings(cfg: Any) -> None:
    """Check the settings of which gunicorn accepts more values than FastWorker.

    :raises InvalidWorkerOption: for the first wrong setting.
    """
    for name in ("keepalive", "graceful_timeout"):
        value = getattr(cfg, name)
        if not is_number(value, least=0, most=TIMEOUT_MAX):
            raise InvalidWorkerOption(
                f"{name}={value!r}: expected seconds, {TIMEOUT_MAX:.0f} at most"
            )
    if cfg.http2_cleartext == "upgrade":
        raise InvalidWorkerOption(
            "http2_cleartext='upgrade': FastWorker does not support the Upgrade header for HTTP/2, "
            "which RFC 9113 made obsolete: use 'prior-knowledge', or 'both' to serve HTTP/1 too"
        )


def check_names(names: Mapping[str, Any]) -> None:
    """Refuse names that resemble the name of an option.

    Such names are probably misspelt, and would have no effect.

    Other unknown names are allowed, because subclasses and configuration files may define names. If
    the configuration file itself reads a name, the name is allowed too. An example is the name
    request_timeout in the line ``timeout = request_timeout``.

    :param names: names and values of a class or module.
    :raises InvalidWorkerOption: for the first misspelt name.
    """
    for name, value in names.items():
        if name in OPTIONS or not isinstance(value, (int, float, str)):
            continue
        meant = difflib.get_close_matches(name, OPTIONS, n=1, cutoff=_MIN_SIMILARITY)
        without_unit = [each for each in _WITH_UNITS if each.rpartition("_")[0] == name]
        if (meant or without_unit) and name not in _names_read(names):
            raise InvalidWorkerOption(
                f"FastWorker.{name}={value!r}: there is no such attribute. Did you mean "
                f"{(meant or without_unit)[0]}? The attributes are {', '.join(OPTIONS)}"
            )


def _names_read(names: Mapping[str, Any]) -> set[str]:
    """Return the names that a module's source reads. Empty for a class or without a source."""
    with contextlib.suppress(KeyError, OSError, SyntaxError, ValueError):
        nodes = ast.walk(ast.parse(Path(names["__file__"]).read_bytes()))
        return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return set()


# Options in gunicorn's configuration.

# The value of gunicorn's setting `config`.
_config: str | None = None
# The options of each worker class, without those of gunicorn's configuration.
_class_options: dict[type, dict[str, Any]] = {}
# The options of the last valid configuration. Empty until a configuration was valid.
_last_valid: dict[str, Any] = {}


def set_config(config: str | None) -> bool:
    """Set which configuration to read. Return whether it is a Python module, and not a file.

    For a module, the caller must call :func:`configure` again: gunicorn loads the worker class
    before it knows the setting.

    :param config: the value of gunicorn's setting `config`.
    """
    global _config, _last_valid
    _config = config
    if config is None or not config.startswith("python:"):
        return False
    _last_valid = {}
    return True


def configure(worker: type, base: type) -> None:
    """Set the options of gunicorn's configuration on a worker class, and check all options.

    If a configuration is invalid at a reload, the error is logged and the options do not change.

    :param base: FastWorker.
    :raises InvalidWorkerOption: at the start, if an option has a wrong value or a misspelt name, or
        if both the configuration and a subclass set the option.
    """
    global _last_valid
    class_options = _class_options.setdefault(base, {name: getattr(base, name) for name in OPTIONS})
    if worker not in _class_options:
        for kind in reversed(worker.__mro__[: worker.__mro__.index(base)]):
            class_options = class_options | {
                name: value for name, value in vars(kind).items() if name in OPTIONS
            }
        _class_options[worker] = class_options
    _assign(worker, _class_options[worker])
    try:
        _assign(worker, _options(configuration_names(_config), worker, base))
        check_attributes(worker, base)
    except InvalidWorkerOption as error:
        _assign(worker, _last_valid or _class_options[worker])
        if not _last_valid:
            raise
        logging.getLogger("gunicorn.error").error("%s. The options have not changed.", error)
    _last_valid = {name: getattr(worker, name) for name in OPTIONS}


def _options(names: Mapping[str, Any], worker: type, base: type) -> dict[str, Any]:
    """Return the options that a module defines."""
    check_names(names)
    configured = {name: names[name] for name in OPTIONS if name in names}
    for name, value in configured.items():
        if (class_value := _class_options[worker][name]) != _class_options[base][name]:
            raise InvalidWorkerOption(
                f"{name}={value!r} in gunicorn's configuration: {worker.__name__}.{name} is "
                f"also set, to {class_value!r}. Remove one of the two"
            )
    return configured


def _assign(worker: type, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        setattr(worker, name, value)


# The server's options.

# An HTTP/2 setting has 32 bits (RFC 9113 section 6.5.1).
_MAX_HTTP2_VALUE = 2**32 - 1
# The worker's attributes that are also options of the server.
_SERVER_OPTIONS = [field.name for field in fields(Options) if field.name in OPTIONS]


def effective_value(worker: Any, name: str) -> Any:
    """Return an option's value. The environment has precedence over the worker's attribute.

    :raises InvalidWorkerOption: if the environment variable's value is not allowed.
    """
    try:
        return options_of_environment().get(name, getattr(worker, name))
    except ConfigurationError as error:
        raise InvalidWorkerOption(str(error)) from None


def options(worker: Any, settings: Settings) -> Options:
    """Return the server's options, from a worker's attributes and gunicorn's settings.

    :raises MissingExtra: if HTTP/2 is enabled, and h2 is not installed.
    :raises ConfigurationError: if HTTP/2 is enabled, and the installed h2 is not supported.
    """
    if "h2" in settings.http_protocols:
        with needs("HTTP/2 on FastWorker", "h2", "http2"):
            import h2  # noqa: F401
        check_h2()
    limits = options_of_environment()
    values = {name: limits.get(name, getattr(worker, name)) for name in _SERVER_OPTIONS}
    return Options(
        threads=settings.threads,
        worker_connections=settings.worker_connections,
        max_keepalived=settings.worker_connections - settings.threads,  # the same as in gthread
        keepalive_s=float(settings.keepalive),
        graceful_timeout_s=settings.graceful_timeout,
        # With reuse_port each worker has its own listeners.
        has_other_workers=settings.workers > 1 and not settings.reuse_port,
        sendfile=settings.sendfile is not False,
        trailer_line_bytes=settings.max_field_bytes,
        max_fields=settings.max_fields,
        http2_streams=min(settings.http2_max_concurrent_streams, _MAX_HTTP2_VALUE),
        http2_window_bytes=settings.http2_initial_window_size,
        http2_frame_bytes=settings.http2_max_frame_size,
        http2_header_list_bytes=min(settings.http2_max_header_list_size, _MAX_HTTP2_VALUE),
        **values,
    )


def parsers(worker: Any, settings: Settings) -> Callable[[Any], Parser]:
    """Return a function that returns the parser for a peer's address."""

    limit = options_of_environment().get("head_limit_bytes", worker.head_limit_bytes)

    def make(*, trusted: bool) -> Parser:
        parser = GunicornParser(
            settings,
            trusted=trusted,
            checks_host=worker.check_host,
            head_limit_bytes=int(limit),
        )
        if not _uses_httptools(settings):
            return parser
        from .httptools_parser import HttptoolsParser

        return HttptoolsParser(parser)

    plain, trusted = make(trusted=False), make(trusted=True)
    return lambda peer: trusted if settings.trusts(peer) else plain


def has_httptools(cfg: Any) -> bool:
    """Return whether httptools is installed and gunicorn's settings allow its use."""
    return bool(
        cfg.http_parser == "auto" and cfg.protocol != "uwsgi" and find_spec("httptools") is not None
    )


def _uses_httptools(settings: Settings) -> bool:
    return has_httptools(settings) and is_tested()


def drop_http2(cfg: Any) -> str | None:
    """Disable HTTP/2 in gunicorn's settings if the installed h2 is not supported.

    :returns: a line for the log if HTTP/2 was disabled.
    """
    if "h2" not in cfg.http_protocols or find_spec("h2") is None:
        return None
    problem = _problem_of_h2()
    if problem is None:
        return None
    cfg.set("http_protocols", "h1")
    cfg.set("http2_cleartext", "off")
    return f"FastWorker serves only HTTP/1.1: {problem}"


@cache
def _problem_of_h2() -> str | None:
    try:
        check_h2()
    except ConfigurationError as error:
        return str(error)
    return None
