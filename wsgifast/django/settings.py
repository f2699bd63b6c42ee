"""The settings: WSGIFAST_STATIC, or those of WhiteNoise and ServeStatic, and WSGIFAST_MEDIA.

``WSGIFAST_STATIC`` is a dictionary of StaticFiles' options and a few of Django's. Options that it
lacks are read from ``WHITENOISE_...``, then from ``SERVESTATIC_...``.

``WSGIFAST_MEDIA`` has ``accel_redirect`` or ``x_sendfile``, as for :class:`wsgifast.WSGIFast`, for
the files of serve_media.

``WSGIFAST_COMPRESS`` is True, or a dictionary of :class:`wsgifast.Compression`'s options.
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
# The option for each setting, without its prefix.
OPTIONS = {
    **{row.whitenoise: row.name for row in STATIC_FILES.values() if row.whitenoise},
    "KEEP_ONLY_HASHED_FILES": "keep_only_hashed",
    "MANIFEST_STRICT": "manifest_strict",
    "ROOT": "root",
    "SKIP_COMPRESS_EXTENSIONS": "skip_extensions",
    "USE_FINDERS": "finders",
}
# Settings without effect: files are looked up when they are requested.
LEFT_OUT = {"AUTOREFRESH", "USE_MANIFEST", "USE_STATIC_ROOT"}
SITE_OPTIONS = STATIC_FILES.keys() - {"app", "directory", "fallback"}
_STATIC_OPTIONS = SITE_OPTIONS | {"codings", *OPTIONS.values()}
_MEDIA_OPTIONS = {"accel_redirect", "x_sendfile"}


def static_options() -> dict[str, Any]:
    """Return the options from the settings, with their defaults.

    :raises ConfigurationError: if WSGIFAST_STATIC has an unknown option, or one that StaticFiles
        does not have has an invalid value, or a setting of Django's own that is used with them.
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
    for start in reversed(PREFIXES):
        for rest, option in OPTIONS.items():
            if hasattr(settings, start + rest):
                options[option] = getattr(settings, start + rest)
    options.update(_own("WSGIFAST_STATIC", _STATIC_OPTIONS))
    check_switches(finders=options["finders"], keep_only_hashed=options["keep_only_hashed"])
    options.setdefault("compress", compression() or False)
    if options["manifest_strict"] is not None:
        check_switches(manifest_strict=options["manifest_strict"])
    _check_folder("STATIC_ROOT", settings.STATIC_ROOT)
    if isinstance(options["index"], bool):  # as in WhiteNoise
        options["index"] = "index.html" if options["index"] else None
    prefix = options.get("prefix")
    if prefix is not None and not isinstance(prefix, str):
        raise ConfigurationError(f"prefix={prefix!r}: a URL path, or None for that of STATIC_URL")
    path = (_url_prefix() if prefix is None else prefix).strip("/")
    options["prefix"] = f"/{path}/" if path else "/"
    return options


def media_front_server() -> FrontServer | None:
    """Return the front server that sends serve_media's files, or None.

    :raises ConfigurationError: if WSGIFAST_MEDIA or MEDIA_ROOT is invalid.
    """
    _check_folder("MEDIA_ROOT", settings.MEDIA_ROOT)
    options = _own("WSGIFAST_MEDIA", _MEDIA_OPTIONS)
    return front_server_of(options.get("accel_redirect"), options.get("x_sendfile"))


def compression() -> Compression | None:
    """Return how static files, and the responses of both applications, are compressed.

    WSGIFAST_COMPRESS is True, or a dictionary of :class:`wsgifast.Compression`'s options.

    :raises ConfigurationError: if it is invalid.
    """
    given = getattr(settings, "WSGIFAST_COMPRESS", False)
    if isinstance(given, dict):
        known = set(inspect.signature(Compression).parameters)
        return Compression(**_own("WSGIFAST_COMPRESS", known))
    try:
        return compression_for(given)
    except ConfigurationError:
        text = "True, False, or a dictionary of options"
        raise ConfigurationError(f"WSGIFAST_COMPRESS={given!r}: {text}") from None


def _own(setting: str, known: set[str]) -> dict[str, Any]:
    own: dict[str, Any] = getattr(settings, setting, {})
    if not isinstance(own, dict):
        raise ConfigurationError(f"{setting}={own!r}: a dictionary of options")
    unknown = [name for name in own if name not in known]
    if unknown:
        raise ConfigurationError(
            f"{setting} has no option {unknown[0]!r}; it has {', '.join(sorted(known))}"
        )
    return own


def _url_prefix() -> str:
    """Return the path of STATIC_URL as in a request's path_info."""
    try:
        static_url = settings.STATIC_URL or ""
    except AttributeError:  # Django takes it for a string
        raise ConfigurationError("STATIC_URL is no string: a URL path such as 'static/'") from None
    script_name = settings.FORCE_SCRIPT_NAME or ""
    if not isinstance(script_name, str):
        raise ConfigurationError(f"FORCE_SCRIPT_NAME={script_name!r}: a URL path, or None")
    return urlsplit(str(static_url)).path.removeprefix(script_name.rstrip("/"))


def _check_folder(name: str, value: object) -> None:
    if value is not None and not isinstance(value, (str, os.PathLike)):
        raise ConfigurationError(f"{name}={value!r}: a directory's path")
