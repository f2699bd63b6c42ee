"""FastWorker's options: their checks, and their values from gunicorn's configuration.

They are class attributes, and plain names in gunicorn's configuration file, beside its settings.
gunicorn ignores names that it does not know. It runs the file as a module. The names in it are read
here whenever gunicorn asks for the worker class: at the start, and at each reload.
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
# difflib's similarity of two names. Misspelt names are above it. A subclass's own names are below
# it, even memory_limit_bytes (0.82) or db_timeout_s (0.85).
_ALIKE = 0.87


class InvalidWorkerOption(ConfigurationError, RuntimeError):
    """An attribute of FastWorker has a value that cannot work, or a name that it does not know.

    A RuntimeError too: gunicorn's command prints those as a sentence.
    """


def declare(base: type) -> None:
    """Give FastWorker its options as attributes, with their defaults."""
    for name, option in OPTIONS.items():
        setattr(base, name, option.default)


def check_attributes(worker: Any, base: type) -> None:
    """Check the attributes of a worker class.

    :param base: FastWorker, from which on the classes are looked through for misspelt names.
    :raises InvalidWorkerOption: for the first that is wrong.
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
        check_probe_paths(outside_value(worker, "health_path"), outside_value(worker, "ready_path"))
        if worker.metrics_bind is not None:
            metrics_address(worker.metrics_bind, "FastWorker.metrics_bind")
    except ConfigurationError as error:
        raise InvalidWorkerOption(str(error)) from None


def check_settings(cfg: Any) -> None:
    """Check gunicorn's settings that FastWorker does not have, or gunicorn checks too little.

    :raises InvalidWorkerOption: for the first that is wrong.
    """
    for name in ("keepalive", "graceful_timeout"):
        value = getattr(cfg, name)
        if not is_number(value, least=0, most=TIMEOUT_MAX):
            raise InvalidWorkerOption(
                f"{name}={value!r}: expected seconds, {TIMEOUT_MAX:.0f} at most"
            )
    if cfg.http2_cleartext == "upgrade":
        raise InvalidWorkerOption(
            "http2_cleartext='upgrade': FastWorker knows no Upgrade to HTTP/2, which RFC 9113 has "
            "made obsolete: use 'prior-knowledge', or 'both' if clients of HTTP/1 come too"
        )


def check_names(names: Mapping[str, Any]) -> None:
    """Refuse a value with a name that is nearly an attribute's: it would have no effect.

    No other name is refused, since subclasses and configurations may have names of their own.
    Neither is one that its own file reads, as in ``timeout = request_timeout``.

    :param names: names with their values.
    :raises InvalidWorkerOption: for the first that is misspelt.
    """
    for name, value in names.items():
        if name in OPTIONS or not isinstance(value, (int, float, str)):
            continue
        meant = difflib.get_close_matches(name, OPTIONS, n=1, cutoff=_ALIKE)
        without_unit = [each for each in _WITH_UNITS if each.rpartition("_")[0] == name]
        if (meant or without_unit) and name not in _names_read(names):
            raise InvalidWorkerOption(
                f"FastWorker.{name}={value!r}: there is no such attribute; is "
                f"{(meant or without_unit)[0]} meant? There are {', '.join(OPTIONS)}"
            )


def _names_read(names: Mapping[str, Any]) -> set[str]:
    """Return the names that the code of a module reads. Empty for a class, and without a source."""
    with contextlib.suppress(KeyError, OSError, SyntaxError, ValueError):
        nodes = ast.walk(ast.parse(Path(names["__file__"]).read_bytes()))
        return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return set()


# From gunicorn's configuration.

# gunicorn's setting `config`.
_config: str | None = None
# Each class's options as they are without a configuration.
_own: dict[type, dict[str, Any]] = {}
# The options of the last valid configuration. Empty until there is one.
_in_use: dict[str, Any] = {}


def name_module(config: str | None) -> bool:
    """Set at the start which module is the configuration. Return whether it is not a file's.

    In that case :func:`configure` could not read it before, and has to be called again.

    :param config: gunicorn's setting `config`.
    """
    global _config, _in_use
    _config = config
    if config is None or not config.startswith("python:"):
        return False
    _in_use = {}
    return True


def configure(worker: type, base: type) -> None:
    """Give a worker class the options that the configuration has, and check all of its options.

    If a reload brings one that cannot work, the error is logged, and the options stay as they were.

    :param base: FastWorker.
    :raises InvalidWorkerOption: at the start, for an option with an impossible value or a misspelt
        name, and for one that a subclass in the configuration sets, too.
    """
    global _in_use
    own = _own.setdefault(base, {name: getattr(base, name) for name in OPTIONS})
    if worker not in _own:
        for kind in reversed(worker.__mro__[: worker.__mro__.index(base)]):
            own = own | {name: value for name, value in vars(kind).items() if name in OPTIONS}
        _own[worker] = own
    _assign(worker, _own[worker])
    try:
        _assign(worker, _options(configuration_names(_config), worker, base))
        check_attributes(worker, base)
    except InvalidWorkerOption as error:
        _assign(worker, _in_use or _own[worker])
        if not _in_use:
            raise
        logging.getLogger("gunicorn.error").error("%s. The options stay as they were.", error)
    _in_use = {name: getattr(worker, name) for name in OPTIONS}


def _options(names: Mapping[str, Any], worker: type, base: type) -> dict[str, Any]:
    """The names in a module that are options."""
    check_names(names)
    given = {name: names[name] for name in OPTIONS if name in names}
    for name, value in given.items():
        if (own := _own[worker][name]) != _own[base][name]:
            raise InvalidWorkerOption(
                f"{name}={value!r} in gunicorn's configuration: {worker.__name__}.{name} is "
                f"{own!r}, leave out one of the two"
            )
    return given


def _assign(worker: type, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        setattr(worker, name, value)


# To the server.

# A setting has 32 bits (RFC 9113 section 6.5.1).
_MOST_HTTP2_VALUE = 2**32 - 1
# Attributes of the worker that are options of the server.
_OF_THE_SERVER = [field.name for field in fields(Options) if field.name in OPTIONS]


def outside_value(worker: Any, name: str) -> Any:
    """Return the value of an option that an environment variable may set.

    :raises InvalidWorkerOption: for a variable with a value that an option cannot have.
    """
    try:
        return options_of_environment().get(name, getattr(worker, name))
    except ConfigurationError as error:
        raise InvalidWorkerOption(str(error)) from None


def options(worker: Any, settings: Settings) -> Options:
    """Return the server's options.

    :raises MissingExtra: if HTTP/2 is enabled, and h2 is not installed.
    :raises ConfigurationError: if HTTP/2 is enabled, and the installed h2 does not fit.
    """
    if "h2" in settings.http_protocols:
        with needs("HTTP/2 on FastWorker", "h2", "http2"):
            import h2  # noqa: F401
        check_h2()
    limits = options_of_environment()
    own = {name: limits.get(name, getattr(worker, name)) for name in _OF_THE_SERVER}
    return Options(
        threads=settings.threads,
        worker_connections=settings.worker_connections,
        max_keepalived=settings.worker_connections - settings.threads,  # as gthread's
        keepalive_s=float(settings.keepalive),
        graceful_timeout_s=settings.graceful_timeout,
        # Not where each worker has its own listeners.
        has_other_workers=settings.workers > 1 and not settings.reuse_port,
        sendfile=settings.sendfile is not False,
        trailer_line_bytes=settings.most_field_bytes,
        max_fields=settings.most_fields,
        http2_streams=min(settings.http2_max_concurrent_streams, _MOST_HTTP2_VALUE),
        http2_window_bytes=settings.http2_initial_window_size,
        http2_frame_bytes=settings.http2_max_frame_size,
        http2_header_list_bytes=min(settings.http2_max_header_list_size, _MOST_HTTP2_VALUE),
        **own,
    )


def parsers(worker: Any, settings: Settings) -> Callable[[Any], Parser]:
    """Return a function that chooses the parser for a peer by its address."""

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
    """Return whether httptools is installed, and the settings do not ask for gunicorn's parser."""
    return bool(
        cfg.http_parser == "auto" and cfg.protocol != "uwsgi" and find_spec("httptools") is not None
    )


def _uses_httptools(settings: Settings) -> bool:
    return has_httptools(settings) and is_tested()


def drop_http2(cfg: Any) -> str | None:
    """Turn HTTP/2 off in gunicorn's settings if the installed h2 does not fit.

    :returns: a line for the log if it has been turned off.
    """
    if "h2" not in cfg.http_protocols or find_spec("h2") is None:
        return None
    problem = _problem_of_h2()
    if problem is None:
        return None
    cfg.set("http_protocols", "h1")
    cfg.set("http2_cleartext", "off")
    return f"FastWorker serves HTTP/1.1 alone: {problem}"


@cache
def _problem_of_h2() -> str | None:
    try:
        check_h2()
    except ConfigurationError as error:
        return str(error)
    return None
