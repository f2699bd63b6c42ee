"""Compression(dictionary=...): pages and JSON are compressed with files that the client has."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from starlette.authentication import SimpleUser, UnauthenticatedUser

from tests.devservers.serving import serve
from tests.support.calls import recorded
from tests.support.chromium import chromium
from tests.support.decoders import BROWSERS, available, decoded, decoded_delta
from tests.support.servers import wait_for
from wsgifast import Compression, ConfigurationError, WSGIFast
from wsgifast.commands import cli
from wsgifast.compression.dictionaries import PagesDictionary, make_delta, train
from wsgifast.compression.policy import compressed_tag

from .interfaces import Ask, Site, ask_asgi, ask_wsgi

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

FRAME = "".join(f"<li><a href='/item/{n * 7919 % 997}'>entry {n}</a>\n" for n in range(200))
PAGES = [f"<!doctype html><title>{n}</title>{FRAME}<p>{n * n}".encode() for n in range(4)]
VARY = "Accept-Encoding, Available-Dictionary"
HTML = ("Content-Type", "text/html; charset=utf-8")


@pytest.fixture
def dictionary(tmp_path: Path) -> Path:
    path = tmp_path / "pages.dict"
    path.write_bytes(train(PAGES[:2]))
    return path


def page(**options: Any) -> Site:
    return Site(PAGES[3], HTML, **options)


@pytest.mark.parametrize("blocks", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "application/json"])
def test_page_is_compressed_by_the_clients_dictionary(
    ask: Ask, dictionary: Path, kind: str, blocks: bool
) -> None:
    body = [PAGES[3][:3000], PAGES[3][3000:]] if blocks else PAGES[3]
    site = Site(body, ("Content-Type", kind), tag='"a"')
    content = dictionary.read_bytes()
    compression = Compression(dictionary=dictionary)
    for padded in (compression, Compression(dictionary=dictionary, padding=False)):
        status, headers, body = ask(
            site, padded, accept_encoding=BROWSERS, available_dictionary=available(content)
        )
        assert status == 200
        assert decoded_delta(body, content) == PAGES[3]
        assert headers["content-encoding"] == "dcz"
        assert headers["vary"] == VARY
        assert headers["etag"] == compressed_tag('"a"', "dcz")
        assert "link" not in headers
    assert len(body) < 150
    # Without the dictionary, a client gets an ordinary content coding. A page names the
    # dictionary's URL.
    _, headers, body = ask(site, compression, accept_encoding=BROWSERS)
    assert decoded(headers["content-encoding"], _unpadded(body)) == PAGES[3]
    assert headers["vary"] == VARY
    assert ("link" in headers) == ("html" in kind)


def _unpadded(body: bytes) -> bytes:
    """Return a zstd body without the skippable frame at its beginning."""
    skipped = body[:4] == bytes.fromhex("502a4d18")
    return body[8 + int.from_bytes(body[4:8], "little") :] if skipped else body


def test_dictionary_is_where_the_link_says(ask: Ask, dictionary: Path) -> None:
    compression = Compression(dictionary=dictionary)
    _, headers, _ = ask(page(), compression, accept_encoding="br")
    link = re.fullmatch(r'<(/[^>]+)>; rel="compression-dictionary"', headers["link"])
    assert link is not None
    status, headers, body = ask(page(), compression, link[1], accept_encoding="br")
    assert status == 200
    assert decoded("br", body) == dictionary.read_bytes()
    assert headers["use-as-dictionary"].startswith('match="/*", match-dest=("document"')
    assert "max-age=31536000" in headers["cache-control"]
    assert headers["vary"] == "Accept-Encoding"
    status, headers, body = ask(page(), compression, link[1], "HEAD")
    assert (status, body) == (200, b"")
    _, _, body = ask(page(), compression, link[1], "POST")
    assert body == PAGES[3]  # the app's own Vary


@pytest.mark.parametrize(
    ("sent", "requested", "status"),
    [
        ([HTML, ("Set-Cookie", "a=b")], {}, 200),
        ([HTML, ("Cache-Control", "private")], {}, 200),
        ([HTML, ("Cache-Control", "max-age=0, No-Store")], {}, 200),
        ([HTML], {"cookie": "session=1"}, 200),
        ([HTML], {"authorization": "Bearer x"}, 200),
        ([HTML], {"remote_user": "a"}, 200),
        ([HTML], {}, 404),
        ([("Content-Type", "text/css")], {}, 200),
    ],
)
def test_private_responses_ignore_the_dictionary(
    ask: Ask, dictionary: Path, sent: list[tuple[str, str]], requested: dict[str, str], status: int
) -> None:
    content = dictionary.read_bytes()
    compression = Compression(dictionary=dictionary)
    for extra in ({}, {"available_dictionary": available(content)}):
        headers: dict[str, str]
        _, headers, _ = ask(
            Site(PAGES[3], *sent, status=status),
            compression,
            accept_encoding=BROWSERS,
            **requested,
            **extra,
        )
        assert headers["content-encoding"] == "zstd"
        assert headers["vary"] == "Accept-Encoding"
        assert "link" not in headers


@pytest.mark.parametrize("key", ["REMOTE_USER", "AUTH_TYPE", "user"])
def test_page_of_a_known_user_has_no_dictionary(dictionary: Path, key: str) -> None:
    """The server knows the user, or inner middleware finds the user."""
    site, compression = page(), Compression(dictionary=dictionary)

    def wsgi(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        environ[key] = "a"
        return site.wsgi(environ, start_response)

    async def asgi(scope: Any, receive: Any, send: Any) -> None:
        scope["user"] = SimpleUser("a") if known else UnauthenticatedUser()
        await site.asgi(scope, receive, send)

    for known in (True, False):
        headers: dict[str, str]
        if key == "user":
            _, headers, _ = ask_asgi(asgi, compression, accept_encoding=BROWSERS)
        else:
            app = wsgi if known else site
            _, headers, _ = ask_wsgi(app, compression, accept_encoding=BROWSERS)
        assert headers["content-encoding"] == "zstd"
        assert headers["vary"] == ("Accept-Encoding" if known else VARY)
        assert ("link" in headers) == (not known)


@pytest.mark.parametrize(
    "requested",
    [
        {"available_dictionary": available(b"another")},
        {"available_dictionary": "nonsense"},
        {"accept_encoding": "br"},
        {"sec_fetch_site": "cross-site", "sec_fetch_mode": "cors", "origin": "https://a"},
    ],
)
def test_other_clients_get_an_ordinary_coding(
    ask: Ask, dictionary: Path, requested: dict[str, str]
) -> None:
    given = {
        "accept_encoding": BROWSERS,
        "available_dictionary": available(dictionary.read_bytes()),
        **requested,
    }
    _, headers, body = ask(page(), Compression(dictionary=dictionary, padding=False), **given)
    assert headers["content-encoding"] in ("zstd", "br")
    assert decoded(headers["content-encoding"], body) == PAGES[3]


def test_app_keeps_its_304_and_sees_its_own_tag(ask: Ask, dictionary: Path) -> None:
    site = page(tag='"a"')
    status, headers, _ = ask(
        site,
        Compression(dictionary=dictionary),
        accept_encoding=BROWSERS,
        available_dictionary=available(dictionary.read_bytes()),
        if_none_match=compressed_tag('"a"', "dcz"),
    )
    assert site.seen == ('"a"', None)
    assert (status, headers["etag"], headers["vary"]) == (304, compressed_tag('"a"', "dcz"), VARY)


def test_file_is_sent_as_without_the_dictionary(ask: Ask, dictionary: Path, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_bytes(PAGES[3])
    content = dictionary.read_bytes()
    _, headers, body = ask(
        Site(tmp_path / "page.html", HTML),
        Compression(dictionary=dictionary),
        accept_encoding=BROWSERS,
        available_dictionary=available(content),
    )
    coding = headers["content-encoding"]
    got = decoded_delta(body, content) if coding == "dcz" else decoded(coding, _unpadded(body))
    assert got == PAGES[3]


def test_training_takes_what_is_new_of_each_page() -> None:
    other = b"<p>nothing like the others: " + bytes(range(32, 127)) * 3
    assert train([]) == b""
    assert train(PAGES) == PAGES[0]
    assert train([PAGES[0], other, PAGES[1]]) == PAGES[0] + other
    assert len(train([bytes([n]) * 40_000 for n in range(10)])) <= 128 * 1024
    page = make_delta(PAGES[3], train(PAGES[:2]))
    assert len(page) < 150


@pytest.mark.parametrize("content", [None, b"", b"x" * 7, b"x" * (1024 * 1024 + 1)])
def test_file_that_is_no_dictionary_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "pages.dict"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"pages\.dict"):
        Compression(dictionary=path)


@pytest.fixture
def address() -> Iterator[str]:
    """A site that sends pages with and without cookies, on a real server."""

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/missing":
            start_response("404 Not Found", [HTML])
            return [b""]
        assert "HTTP_COOKIE" not in environ
        cookie = [("Set-Cookie", "a=b")] if path == "/cookie" else []
        private = [("Cache-Control", "private")] if path == "/private" else []
        start_response("200 OK", [HTML, *cookie, *private])
        return [PAGES[0]]

    with serve(app, "wsgiref") as served:
        yield f"http://127.0.0.1:{served.address[1]}"


def test_command_trains_a_dictionary_of_public_pages(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "pages.dict"
    urls = [f"{address}/", f"{address}/?a=b"]
    assert cli.main(["compress", "--output", str(output), "--train", *urls]) == 0
    assert output.read_bytes() == PAGES[0]
    assert Compression(dictionary=output).dictionary is not None
    left_out = [f"{address}/{name}" for name in ("cookie", "private", "missing")]
    output.unlink()
    assert cli.main(["compress", "--output", str(output), "--train", *urls, *left_out]) == 1
    error = capsys.readouterr().err
    assert output.read_bytes() == PAGES[0]
    assert all(f"{url} is left out" in error for url in left_out)
    for wrong in ([*left_out], ["localhost/"]):
        assert cli.main(["compress", "--output", str(output), "--train", *wrong]) == 2
    with pytest.raises(SystemExit):
        cli.main(["compress"])
    assert "name DIR" in capsys.readouterr().err


def test_chromium_decodes_pages_with_the_dictionary(dictionary: Path, tmp_path: Path) -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", [HTML])
        number = int(environ["PATH_INFO"].strip("/") or 0)
        return [b"<!doctype html><link rel=icon href=data:,>", PAGES[number % 4]]

    wrapped = WSGIFast(app, compress=Compression(dictionary=dictionary))
    with serve(wrapped, "wsgiref") as served, chromium(tmp_path / "profile") as browser:
        url = f"http://localhost:{served.address[1]}"
        first = browser.visit(f"{url}/0")[f"{url}/0"]
        numbers = iter(range(1, 1000))

        def decodes() -> bool:
            # The client fetches the dictionary when it is idle.
            number = next(numbers)
            seen = browser.visit(f"{url}/{number}")[f"{url}/{number}"]
            if seen.headers["content-encoding"] != "dcz":
                return False
            text = browser.evaluate("document.querySelector('p').textContent")
            assert text == str((number % 4) ** 2)
            assert seen.wire_bytes < first.wire_bytes / 2
            return True

        wait_for(decodes, "a page is compressed by the dictionary", interval=0.2)
        assert first.headers["content-encoding"] == "zstd"
        browser.evaluate("document.cookie = 'session=1'")
        seen = browser.visit(f"{url}/2")[f"{url}/2"]
        assert seen.headers["content-encoding"] == "zstd"


@pytest.mark.parametrize("level", [3, 19])
def test_dictionary_is_digested_before_requests_come(
    dictionary: Path, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compression at level 19 takes half a second for a dictionary of 1 MB."""
    made = recorded(monkeypatch, PagesDictionary, "compressor")
    Compression(dictionary=dictionary, levels={"zstd": level})
    assert {each_level for _, each_level, _ in made} == {level, level // 2}
