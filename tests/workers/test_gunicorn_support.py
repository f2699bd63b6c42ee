"""What is taken of gunicorn: its settings as they are, and its limits."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.config import Config
from gunicorn.glogging import Logger
from gunicorn.http.message import Message, Request

from wsgifast.workers.gunicorn_parser import GunicornParser, Unreader
from wsgifast.workers.gunicorn_support import Settings, post_request, pre_request
from wsgifast.workers.gunicorn_version import UnsupportedGunicorn, check_gunicorn


def configured(**options: Any) -> Config:
    cfg = Config()
    for name, value in options.items():
        cfg.set(name, value)
    return cfg


def test_settings_equal_those_of_gunicorn() -> None:
    for options in ({}, {"sendfile": False, "workers": 3, "threads": 4, "proxy_protocol": "auto"}):
        cfg = configured(**options)
        settings = Settings(cfg)
        for name in cfg.settings:
            expected, found = getattr(cfg, name), getattr(settings, name)
            if callable(expected):  # hooks are wrapped anew each time
                assert getattr(found, "__qualname__", "") == expected.__qualname__
            else:
                assert found == expected, name
        assert not settings.is_ssl


def test_default_hooks_are_not_called() -> None:
    class Own(Logger):  # type: ignore[misc]
        def debug(self, msg: str, *args: object, **kwargs: object) -> None:
            said.append(msg % args)

    said: list[str] = []
    cfg = configured()
    quiet = SimpleNamespace(log=Logger(cfg))
    assert pre_request(Settings(cfg), quiet) is None
    assert post_request(Settings(cfg), quiet) is None
    # Its line is logged: by the level, or by another logger whatever its level.
    assert pre_request(Settings(cfg), SimpleNamespace(log=Logger(configured(loglevel="debug"))))
    hook = pre_request(Settings(cfg), SimpleNamespace(log=Own(cfg)))
    assert hook is not None
    hook(SimpleNamespace(method="GET", path="/a"))
    assert said == ["GET /a"]
    # Somebody's own is called, with the worker.
    called: list[Any] = []
    own = Settings(
        configured(
            pre_request=lambda worker, req: called.append(worker),
            post_request=lambda worker, req: called.append(worker),
        )
    )
    before, after = pre_request(own, quiet), post_request(own, quiet)
    assert before is not None
    assert after is not None
    before("request")
    after("request", {}, None)
    assert called == [quiet, quiet]


def test_head_limit_equals_that_of_gunicorn() -> None:
    for fields, size, line in itertools.product((1, 100, 0, 40_000), (0, 10, 9000), (0, 100, 8000)):
        settings = Settings(
            configured(
                limit_request_fields=fields, limit_request_field_size=size, limit_request_line=line
            )
        )
        parser = GunicornParser(settings, trusted=False, checks_host=True)
        unreader = Unreader(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        request = Request(settings, unreader, ("127.0.0.1", 1), 1)
        longest = request.limit_request_line or 1024 * 1024
        assert parser.head_limit_bytes >= request.max_buffer_headers + longest
        assert parser.head_limit_bytes <= request.max_buffer_headers + max(longest, 8190)


def test_changed_copy_of_gunicorn_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_gunicorn()
    monkeypatch.delattr(Message, "parse_headers")
    with pytest.raises(UnsupportedGunicorn, match=r"has no Message\.parse_headers"):
        check_gunicorn()
