"""The options of StaticFiles. Each option is declared once.

The rows below define the checks for WSGI and ASGI, Django's settings, and the tables of the
documentation. To add an option, add a row and a type in :class:`Arguments`, and use the option in
:mod:`.site`. Then run `make docs`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from inspect import Parameter, Signature
from typing import Any, NamedTuple, TypedDict

from ..checks import check_switches, is_count
from ..compression.policy import Compression
from ..errors import ConfigurationError
from .directory import names_of
from .rules import AddHeaders, ImmutableTest

_CHARSET = re.compile(r"[!#$%&'*+^`{}~\w.-]+", re.ASCII)
# The default value that marks a required option.
REQUIRED = Parameter.empty

Path = str | os.PathLike[str]


class Arguments(TypedDict, total=False):
    """The types of all options except `app` and `directory`."""

    prefix: str
    index: str | None
    fallback: str | None
    listing: bool
    follow_symlinks: bool
    hidden_files: bool
    max_age: int | None
    immutable: ImmutableTest | str | re.Pattern[str] | None
    mimetypes: Mapping[str, str] | None
    charset: str | None
    add_headers: AddHeaders | None
    allow_all_origins: bool
    etag: str | None
    cache_bytes: int
    compress: bool | Compression
    dictionaries: bool


class Option(NamedTuple):
    """The declaration of an option.

    :param type: the type for the documentation.
    :param section: the section of the documentation's page: "files", "headers" or "memory".
    :param help: the description for the documentation, in Markdown.
    :param is_allowed: returns whether a value is valid. None if the type is bool, or if the code
        that uses the option checks it.
    :param expected: the valid values, for error messages.
    :param whitenoise: the name of WhiteNoise's setting, without its prefix.
    :param django_default: the default with Django, if it is different.
    """

    name: str
    default: Any
    type: str
    section: str
    help: str
    is_allowed: Callable[[Any], bool] | None = None
    expected: str = ""
    whitenoise: str = ""
    django_default: Any = ...


def _is_url_path(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("/")


def _is_file_name_or_none(value: Any) -> bool:
    if value is None:
        return True
    return isinstance(value, str) and bool(value) and "/" not in value and bool(names_of(value))


def _is_path_or_none(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value != "" and not value.endswith("/"))


def _is_count_or_none(value: Any) -> bool:
    return value is None or is_count(value)


def _is_function_or_none(value: Any) -> bool:
    return value is None or callable(value)


def _is_charset_or_none(value: Any) -> bool:
    return value is None or (isinstance(value, str) and _CHARSET.fullmatch(value) is not None)


def _is_kind_of_tag(value: Any) -> bool:
    return value is None or value in ("stat", "content")


_ROWS = (
    Option(
        "app",
        None,
        "app or None",
        "files",
        "The app that gets every request for which there is no file. `None`: respond to such "
        "a request with 404. If the directory has a `404.html`, this file is the body.",
    ),
    Option(
        "directory",
        REQUIRED,
        "path, or a list of paths",
        "files",
        "The directory with the files. If several directories have a file of the same name, the "
        "file in the first of these directories is served.",
    ),
    Option(
        "prefix",
        "/",
        "str",
        "files",
        "The URL path at which the directory is served.",
        _is_url_path,
        "a URL path that begins with '/'",
        whitenoise="STATIC_PREFIX",
    ),
    Option(
        "index",
        "index.html",
        "str or None",
        "files",
        "The name of the file that is served for the URL of a directory. `None`: serve no file "
        "for such a URL.",
        _is_file_name_or_none,
        "a file's name, or None",
        whitenoise="INDEX_FILE",
        django_default=None,
    ),
    Option(
        "fallback",
        None,
        "str or None",
        "files",
        "A file for the routes of a single-page app. It is served with 200 for each path for "
        "which there is no file, if the last segment of the path has no dot. The fallback file "
        "must exist.",
        _is_path_or_none,
        "a file's path relative to the directory, or None",
    ),
    Option(
        "listing",
        False,
        "bool",
        "files",
        "If a directory has no index file, serve a page with links to its files.",
    ),
    Option(
        "follow_symlinks",
        False,
        "bool",
        "files",
        "Follow symbolic links to files outside the directory. Links to files inside the directory "
        "always work.",
        whitenoise="ALLOW_UNSAFE_SYMLINKS",
    ),
    Option(
        "hidden_files",
        False,
        "bool",
        "files",
        "Serve files and folders whose names begin with a dot. `/.well-known/` is always served.",
    ),
    Option(
        "max_age",
        60,
        "int or None",
        "headers",
        "The seconds for which caches may use a file without asking the server again. `None`: "
        "send no Cache-Control.",
        _is_count_or_none,
        "whole seconds from 0 on, or None",
        whitenoise="MAX_AGE",
    ),
    Option(
        "immutable",
        None,
        "regular expression, function or None",
        "headers",
        "Selects the files whose content never changes. Caches may store them for a year. "
        "A regular expression is searched for in the URL path. A function is called with "
        "`(path, url)`, and returns whether the file never changes.",
        whitenoise="IMMUTABLE_FILE_TEST",
    ),
    Option(
        "mimetypes",
        None,
        "dict or None",
        "headers",
        'Content types for file extensions (`".js"`) or whole file names. They take precedence '
        "over the built-in content types.",
        whitenoise="MIMETYPES",
    ),
    Option(
        "charset",
        "utf-8",
        "str or None",
        "headers",
        "The charset in the Content-Type of text files. `None`: no charset.",
        _is_charset_or_none,
        "a name such as 'utf-8', or None",
        whitenoise="CHARSET",
    ),
    Option(
        "add_headers",
        None,
        "function or None",
        "headers",
        "A function that changes the headers of all responses with a file. When `StaticFiles` "
        "looks up the file, it calls `add_headers(headers, path, url)`. `headers` is a "
        "`wsgiref.headers.Headers` object. If the function raises an exception, the request fails.",
        _is_function_or_none,
        "a function of (headers, path, url), or None",
        whitenoise="ADD_HEADERS_FUNCTION",
    ),
    Option(
        "allow_all_origins",
        False,
        "bool",
        "headers",
        "Send `Access-Control-Allow-Origin: *`.",
        whitenoise="ALLOW_ALL_ORIGINS",
        django_default=True,
    ),
    Option(
        "etag",
        "stat",
        "str or None",
        "headers",
        'How `StaticFiles` makes entity tags. `"stat"`: from the size and the modification time of '
        'the file. `"content"`: from the bytes of the file, which `StaticFiles` reads when it '
        'looks up the file. Use `"content"` if a file has different modification times on your '
        "hosts. `None`: send no entity tags.",
        _is_kind_of_tag,
        "'stat', 'content' or None",
    ),
    Option(
        "cache_bytes",
        32 * 1024 * 1024,
        "int",
        "memory",
        "Limit for the memory of cached files and their metadata. `0`: cache no files.",
        is_count,
        "bytes, from 0 on",
    ),
    Option(
        "compress",
        False,
        "bool or `Compression`",
        "memory",
        "Compress a file when it is first requested, if it has at most 16 MiB and there is no "
        "precompressed file. If you pass a `Compression` object, `StaticFiles` uses only its "
        "content codings, `min_bytes` and content types. The compressed copies use up to 64 MiB of "
        "memory.",
    ),
    Option(
        "dictionaries",
        False,
        "bool",
        "memory",
        "Send [deltas](#deltas) to browsers that have cached files of an earlier release. This "
        "needs zstd (`wsgifast[compress]`).",
    ),
)
OPTIONS = {option.name: option for option in _ROWS}
_SEPARATE_PARAMETERS = ("app", "directory")


def checked_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Check options, and return them with the defaults of all others.

    :param given: options except `app` and `directory`.
    :raises TypeError: for an unknown option.
    :raises ConfigurationError: if an option has an invalid value.
    """
    unknown = [name for name in given if name not in OPTIONS]
    if unknown:
        raise TypeError(f"StaticFiles has no option {unknown[0]!r}")
    values = {}
    for option in _ROWS:
        if option.name in _SEPARATE_PARAMETERS:
            continue
        values[option.name] = value = given.get(option.name, option.default)
        if option.type == "bool":
            check_switches(**{option.name: value})
        elif option.is_allowed is not None and not option.is_allowed(value):
            raise ConfigurationError(f"{option.name}={value!r}: {option.expected}")
    return values


def signature() -> Signature:
    """Return the signature of StaticFiles, with all options."""
    kind = Parameter.KEYWORD_ONLY
    return Signature(
        [
            Parameter("app", Parameter.POSITIONAL_OR_KEYWORD, default=None),
            *(Parameter(o.name, kind, default=o.default) for o in _ROWS if o.name != "app"),
        ]
    )
