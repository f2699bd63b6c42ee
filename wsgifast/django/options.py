"""The settings: WSGIFAST_STATIC, and those of WhiteNoise and ServeStatic as they are.

``WSGIFAST_STATIC`` is a dictionary of StaticFiles' options, with a few more that are Django's. What
it does not name is taken from ``WHITENOISE_...``, then from ``SERVESTATIC_...``.
"""

from __future__ import annotations

import inspect
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings

from ..errors import ConfigurationError
from ..files.site import StaticFilesBase

__all__ = ["LEFT_OUT", "OPTIONS", "PREFIXES", "SITE_OPTIONS", "static_options"]

PREFIXES = ("WHITENOISE_", "SERVESTATIC_")
# The rest of such a name, and the option that it stands for.
OPTIONS = {
    "ADD_HEADERS_FUNCTION": "add_headers",
    "ALLOW_ALL_ORIGINS": "allow_all_origins",
    "ALLOW_UNSAFE_SYMLINKS": "follow_symlinks",
    "CHARSET": "charset",
    "IMMUTABLE_FILE_TEST": "immutable",
    "INDEX_FILE": "index",
    "KEEP_ONLY_HASHED_FILES": "keep_only_hashed",
    "MANIFEST_STRICT": "manifest_strict",
    "MAX_AGE": "max_age",
    "MIMETYPES": "mimetypes",
    "ROOT": "root",
    "SKIP_COMPRESS_EXTENSIONS": "skip_extensions",
    "STATIC_PREFIX": "prefix",
    "USE_FINDERS": "finders",
}
# Nothing is lost without: files are looked at when they are asked for, and found where they are.
LEFT_OUT = {"AUTOREFRESH", "USE_MANIFEST", "USE_STATIC_ROOT"}
SITE_OPTIONS = {
    name
    for name, parameter in inspect.signature(StaticFilesBase.__init__).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
} - {"directory", "fallback"}
_DJANGO_OPTIONS = {
    "codings",
    "finders",
    "keep_only_hashed",
    "manifest_strict",
    "prefix",
    "root",
    "skip_extensions",
}


def static_options() -> dict[str, Any]:
    """Read the settings, with the defaults where they say nothing.

    :raises ConfigurationError: if WSGIFAST_STATIC names an option that there is not.
    """
    options: dict[str, Any] = {
        "allow_all_origins": True,
        "codings": None,
        "finders": settings.DEBUG,
        "index": None,
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
    own = getattr(settings, "WSGIFAST_STATIC", {})
    unknown = sorted(set(own) - SITE_OPTIONS - _DJANGO_OPTIONS)
    if unknown:
        raise ConfigurationError(
            f"WSGIFAST_STATIC has no option {unknown[0]!r}; it has "
            f"{', '.join(sorted(SITE_OPTIONS | _DJANGO_OPTIONS))}"
        )
    options.update(own)
    if isinstance(options["index"], bool):  # WhiteNoise's way to say it
        options["index"] = "index.html" if options["index"] else None
    prefix = options.get("prefix")
    options["prefix"] = f"/{(_url_prefix() if prefix is None else prefix).strip('/')}/"
    if options["prefix"] == "//":
        options["prefix"] = "/"
    return options


def _url_prefix() -> str:
    """The path of STATIC_URL as requests have it in their path_info."""
    path: str = urlsplit(settings.STATIC_URL or "").path
    script_name = (settings.FORCE_SCRIPT_NAME or "").rstrip("/")
    return path.removeprefix(script_name)
