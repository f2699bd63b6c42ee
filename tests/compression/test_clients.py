"""Responses that clients decode: whole bodies and streams, padded, in each content coding."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.devservers.serving import serve
from tests.support.programs import program
from wsgifast import Compression, WSGIFast

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

DATA = json.dumps([{"id": number, "name": f"name {number}"} for number in range(3000)]).encode()


def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "application/json")])
    if environ["PATH_INFO"] == "/whole":
        return [DATA]
    return (DATA[at : at + 5000] for at in range(0, len(DATA), 5000))


@pytest.fixture(scope="module", params=[True, False], ids=["padded", "unpadded"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    wrapped = WSGIFast(app, compress=Compression(padding=request.param))
    with serve(wrapped, "wsgiref") as served:
        yield f"http://127.0.0.1:{served.address[1]}"


def curl(url: str, headers: dict[str, str]) -> bytes:
    path = program("curl")
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
    library = {"br": "brotli", "gzip": "zlib"}.get(headers["Accept-Encoding"], "zstd")
    if library not in version.stdout:
        pytest.skip(f"curl is built without {library}")
    requested = "Accept-Encoding: " + headers["Accept-Encoding"]
    command = [path, "--silent", "--compressed", "--header", requested, url]
    return subprocess.run(command, capture_output=True, check=True).stdout


def of_httpx(url: str, headers: dict[str, str]) -> bytes:
    httpx = pytest.importorskip("httpx")
    with httpx.stream("GET", url, headers=headers) as response:
        return b"".join(response.iter_bytes())


def of_requests(url: str, headers: dict[str, str]) -> bytes:
    requests = pytest.importorskip("requests")
    content: bytes = requests.get(url, headers=headers, timeout=30).content
    return content


def of_urllib3(url: str, headers: dict[str, str]) -> bytes:
    urllib3 = pytest.importorskip("urllib3")
    with urllib3.PoolManager() as pool:
        response = pool.request("GET", url, headers=headers, preload_content=False)
        content = b"".join(response.stream(100, decode_content=True))
        response.close()
    return content


def of_aiohttp(url: str, headers: dict[str, str]) -> bytes:
    aiohttp = pytest.importorskip("aiohttp")

    async def get() -> bytes:
        async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as got:
            content: bytes = await got.read()
            return content

    return asyncio.run(get())


@pytest.mark.parametrize("coding", ["zstd", "br", "gzip"])
@pytest.mark.parametrize("client", [curl, of_httpx, of_requests, of_urllib3, of_aiohttp])
def test_client_decodes_the_raw_body(
    client: Callable[[str, dict[str, str]], bytes], coding: str, address: str
) -> None:
    for path in ("/whole", "/stream"):
        for _ in range(3):  # each response with padding of a random length
            assert client(address + path, {"Accept-Encoding": coding}) == DATA
