"""FastWorker's options as plain names in gunicorn's configuration file, beside gunicorn's settings.

gunicorn passes over names that it does not know. It runs the file as a module, which is looked up
here whenever gunicorn asks for the worker class: at the start, and at each reload.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from numbers import Number
from typing import Any

from ..checks import configuration_names
from .attributes import ATTRIBUTES, InvalidWorkerOption, check_attributes, check_names

# gunicorn's setting of that name, where it is not a file.
_config: str | None = None
# What a class itself had before it was configured: the next configuration begins with that.
_before: dict[type, dict[str, Any]] = {}
_MISSING = object()
# What a name that an option has too is an option by, right or wrong.
_VALUES = (Number, str, bytes, list, tuple, set, dict, type(None))
# The options of the last configuration that could be used. Once there is one, the server runs.
_in_use: dict[str, Any] = {}


def name_module(config: str | None) -> bool:
    """Say at the start which module is the configuration; returns whether it is no file's.

    Then :func:`configure` could not read it, and is to be called again.

    :param config: gunicorn's setting of that name.
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
    _restore(worker)
    try:
        _assign(worker, _options(configuration_names(_config), worker, base))
        check_attributes(worker, base)
    except InvalidWorkerOption as error:
        _restore(worker)
        if not _in_use:
            raise
        logging.getLogger("gunicorn.error").error("%s. The options stay as they were.", error)
        _assign(worker, _in_use)
    _in_use = {name: getattr(worker, name) for name in ATTRIBUTES}


def _options(names: Mapping[str, Any], worker: type, base: type) -> dict[str, Any]:
    """Those of a module's names that are options; an object other than a value is its own."""
    check_names(names)
    given = {
        name: names[name]
        for name in ATTRIBUTES
        if name in names and isinstance(names[name], _VALUES)
    }
    for kind in worker.__mro__[: worker.__mro__.index(base)]:
        for name in given.keys() & vars(kind).keys():
            raise InvalidWorkerOption(
                f"{name}={given[name]!r} in gunicorn's configuration: {kind.__name__}.{name} is "
                f"{vars(kind)[name]!r}, leave out one of the two"
            )
    return given


def _assign(worker: type, values: Mapping[str, Any]) -> None:
    _before[worker] = {name: vars(worker).get(name, _MISSING) for name in values}
    for name, value in values.items():
        setattr(worker, name, value)


def _restore(worker: type) -> None:
    for name, value in _before.pop(worker, {}).items():
        if value is _MISSING:
            delattr(worker, name)
        else:
            setattr(worker, name, value)
