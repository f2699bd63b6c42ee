"""StaticFiles: its options, valid and invalid."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import asgifast
import pytest

from tests.static.calls import app_behind, call
from wsgifast import ConfigurationError, StaticFiles
from wsgifast.files.site_options import OPTIONS, Arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"directory": []}, "at least one"),
        ({"directory": "/nonexistent-dir"}, "/nonexistent-dir"),
        ({"directory": __file__}, "test_options.py"),
        ({"prefix": "static"}, "prefix='static'"),
        ({"index": "a/b"}, "index='a/b'"),
        ({"index": ""}, "index=''"),
        ({"index": ".."}, "index='..'"),
        ({"max_age": -1}, "max_age=-1"),
        ({"max_age": "60"}, "max_age='60'"),
        ({"max_age": 1.5}, "max_age=1.5"),
        ({"immutable": "("}, "immutable='('"),
        ({"immutable": 7}, "immutable=7"),
        ({"mimetypes": {".x": "nonsense"}}, "nonsense"),
        ({"mimetypes": {".x": "text/x\r\nX: y"}}, "mimetypes"),
        ({"charset": "utf 8"}, "charset"),
        ({"add_headers": "x"}, "add_headers='x'"),
        ({"fallback": "../x"}, "fallback='../x'"),
        ({"fallback": ""}, "fallback=''"),
        ({"fallback": "nope.html"}, "fallback='nope.html': there is no such file in"),
        ({"fallback": "docs"}, "fallback='docs'"),
        ({"fallback": "x", "app": app_behind}, "fallback"),
        ({"cache_bytes": -1}, "cache_bytes=-1"),
        ({"cache_bytes": "1M"}, "cache_bytes='1M'"),
        ({"etag": "md5"}, "etag='md5'"),
        ({"app": "module:app"}, "'module:app' is no WSGI app: it cannot be called"),
        ({"directory": ""}, "directory=''"),
        ({"directory": None}, "directory=None"),
        ({"directory": b"/srv"}, "directory=b'/srv'"),
        ({"index": 5}, "index=5"),
        ({"fallback": True}, "fallback=True"),
        ({"mimetypes": ["x"]}, "mimetypes=['x']"),
        ({"mimetypes": {".x": 5}}, "'.x': 5"),
        ({"charset": 5}, "charset=5"),
        ({"immutable": b"x"}, "immutable=b'x'"),
        ({"cache_bytes": True}, "cache_bytes=True"),
        ({"listing": "no"}, "listing is True or False, not 'no'"),
        ({"hidden_files": "false"}, "hidden_files is True or False, not 'false'"),
        ({"follow_symlinks": 0}, "follow_symlinks is True or False, not 0"),
        ({"allow_all_origins": "*"}, "allow_all_origins is True or False, not '*'"),
    ],
)
def test_wrong_option_is_named_at_once(site: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        StaticFiles(**{"directory": site, **options})
    assert message in str(caught.value)


@pytest.mark.parametrize("static_files", [StaticFiles, asgifast.StaticFiles])
@pytest.mark.parametrize(
    ("arguments", "options", "way_out"),
    [
        (("site",), {}, "'directory'"),
        ((), {"directory": ".", "listings": True}, "'listings'"),
    ],
)
def test_wrong_argument_names_the_class(
    static_files: Any,
    arguments: tuple[str, ...],
    options: dict[str, Any],
    way_out: str,
) -> None:
    with pytest.raises(TypeError) as caught:
        static_files(*arguments, **options)
    assert "StaticFiles" in str(caught.value)
    assert way_out in str(caught.value)


def test_types_do_not_depend_on_the_machine(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mime.types of the machine must not change the response."""
    import mimetypes

    monkeypatch.setattr(mimetypes, "types_map", {".js": "x/wrong"})
    for extension in (".jpg", ".pdf"):
        mimetypes.add_type("x/wrong", extension)
        (site / f"a{extension}").touch()
    try:
        app = StaticFiles(directory=site)
        assert call(app, "/a.jpg").headers["content-type"] == "image/jpeg"
        assert call(app, "/a.pdf").headers["content-type"] == "application/pdf"
    finally:
        mimetypes.init()


def test_each_option_has_a_row_and_a_type() -> None:
    assert {*Arguments.__annotations__, "app", "directory"} == OPTIONS.keys()


@pytest.mark.parametrize("of", [StaticFiles, asgifast.StaticFiles])
def test_signature_shows_each_option(of: type) -> None:
    assert inspect.signature(of).parameters.keys() == OPTIONS.keys()


def test_unknown_option_is_refused(site: Path) -> None:
    with pytest.raises(TypeError, match="no option 'maxage'"):
        StaticFiles(directory=site, maxage=5)  # type: ignore[call-arg]
