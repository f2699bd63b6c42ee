"""The Django settings of wsgifast.

- ``WSGIFAST_STATIC`` is a dictionary with the options of StaticFiles, and some options for Django.
  Options that are not in the dictionary are read from the settings of WhiteNoise and ServeStatic:
  first from ``WHITENOISE_...``, then from ``SERVESTATIC_...``.
- ``WSGIFAST_MEDIA`` is a dictionary with the option ``accel_redirect`` or ``x_sendfile`` of
  :class:`wsgifast.WSGIFast`, for the files of serve_media.
- ``WSGIFAST_COMPRESS`` is True, or a dictionary with the options of :class:`wsgifast.Compression`.
"""

from __future__ import annotations

import inspect
import os
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings

from ..checks import check_switches
from ..compression.policy import Compression, compression_for
from ..errors import ConfigurationError
from ..files.app_files import FrontServer, front_server_of
from ..files.site_options import OPTIONS as STATIC_FILES

PREFIXES = ("WHITENOISE_", "SERVESTATIC_")
# Maps the names of settings, without their prefix, to options.
OPTIONS = {
    **{row.whitenoise: row.name for row in STATIC_FILES.values() if row.whitenoise},
    "KEEP_ONLY_HASHED_FILES": "keep_only_hashed",
    "MANIFEST_STRICT": "manifest_strict",
    "ROOT": "root",
    "SKIP_COMPRESS_EXTENSIONS": "skip_extensions",
    "USE_FINDERS": "finders",
}
# Settings that are not needed here: files are looked up when they are requested.
IGNORED = {"AUTOREFRESH", "USE_MANIFEST", "USE_STATIC_ROOT"}
SITE_OPTIONS = STATIC_FILES.keys() - {"app", "directory", "fallback"}
_STATIC_OPTIONS = SITE_OPTIONS | {"codings", *OPTIONS.values()}
_MEDIA_OPTIONS = {"accel_redirect", "x_sendfile"}


def static_options() -> dict[str, Any]:
    """Return the options of static files from the settings, with their defaults.

    StaticFiles checks the values of its options later. All other values are checked here.

    :raises ConfigurationError: if WSGIFAST_STATIC has an unknown option, or if an option or a
        setting of Django has an invalid value.
    """
    options: dict[str, Any] = {
        **{
            row.name: row.django_default
            for row in STATIC_FILES.values()
            if row.django_default is not ...
        },
        "codings": None,
        "finders": bool(settings.DEBUG),
        "keep_only_hashed": False,
        "manifest_strict": None,
        "max_age": 0 if settings.DEBUG else 60,
        "root": None,
        "skip_extensions": None,
    }
    for prefix in reversed(PREFIXES):
        for suffix, option in OPTIONS.items():
            if hasattr(settings, prefix + suffix):
                options[option] = getattr(settings, prefix + suffix)
    options.update(_read_dict("WSGIFAST_STATIC", _STATIC_OPTIONS))
    check_switches(finders=options["finders"], keep_only_hashed=options["keep_only_hashed"])
    options.setdefault("compress", compression() or False)
    if options["manifest_strict"] is not None:
        check_switches(manifest_strict=options["manifest_strict"])
    _check_folder("STATIC_ROOT", settings.STATIC_ROOT)
    if isinstance(options["index"], bool):  # WhiteNoise's INDEX_FILE may be True
        options["index"] = "index.html" if options["index"] else None
    url_prefix = options.get("prefix")
    if url_prefix is not None and not isinstance(url_prefix, str):
        raise ConfigurationError(
            f"prefix={url_prefix!r}: a URL path, or None for the path of STATIC_URL"
        )
    path = (_url_prefix() if url_prefix is None else url_prefix).strip("/")
    options["prefix"] = f"/{path}/" if path else "/"
    return options


def media_front_server() -> FrontServer | None:
    """Return the front server that sends the files of serve_media. None if there is none.

    :raises ConfigurationError: if WSGIFAST_MEDIA or MEDIA_ROOT is invalid.
    """
    _check_folder("MEDIA_ROOT", settings.MEDIA_ROOT)
    options = _read_dict("WSGIFAST_MEDIA", _MEDIA_OPTIONS)
    return front_server_of(options.get("accel_redirect"), options.get("x_sendfile"))


def compression() -> Compression | None:
    """Return the compression of static files and of the WSGI and ASGI applications.

    :returns: None if WSGIFAST_COMPRESS is not set or False.
    :raises ConfigurationError: if WSGIFAST_COMPRESS is invalid.
    """
    given = getattr(settings, "WSGIFAST_COMPRESS", False)
    if isinstance(given, dict):
        known = set(inspect.signature(Compression).parameters)
        return Compression(**_read_dict("WSGIFAST_COMPRESS", known))
    try:
        return compression_for(given)
    except ConfigurationError:
        text = "True, False, or a dictionary of options"
        raise ConfigurationError(f"WSGIFAST_COMPRESS={given!r}: {text}") from None


def _read_dict(setting: str, known: set[str]) -> dict[str, Any]:
    """Return the value of a setting that is a dictionary of options. Empty without the setting."""
    options: dict[str, Any] = getattr(settings, setting, {})
    if not isinstance(options, dict):
        raise ConfigurationError(f"{setting}={options!r}: a dictionary of options")
    unknown = [name for name in options if name not in known]
    if unknown:
        raise ConfigurationError(
            f"{setting} has no option {unknown[0]!r}. Its options are {', '.join(sorted(known))}"
        )
    return options


def _url_prefix() -> str:
    """Return the path of STATIC_URL without the mount point of the app, like `path_info`."""
    try:
        static_url = settings.STATIC_URL or ""
    except AttributeError:  # Django calls methods of a string
        text = "STATIC_URL is not a string: set a URL path such as 'static/'"
        raise ConfigurationError(text) from None
    script_name = settings.FORCE_SCRIPT_NAME or ""
    if not isinstance(script_name, str):
        raise ConfigurationError(f"FORCE_SCRIPT_NAME={script_name!r}: a URL path, or None")
    return urlsplit(str(static_url)).path.removeprefix(script_name.rstrip("/"))


def _check_folder(name: str, value: object) -> None:
    if value is not None and not isinstance(value, (str, os.PathLike)):
        raise ConfigurationError(f"{name}={value!r}: a directory's path")
