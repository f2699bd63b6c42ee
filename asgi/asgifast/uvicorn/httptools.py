"""uvicorn's HttpToolsProtocol with sendfile."""

from __future__ import annotations

from wsgifast.imports import needs

from .protocol import CountedResponse, FileSending, check

with needs("asgifast.uvicorn.HttpToolsProtocol", "httptools", "asgi"):
    from uvicorn.protocols.http import httptools_impl

_STATE = {"chunked_encoding", "expected_content_length"}
check(httptools_impl, "HttpToolsProtocol", _STATE, "handle_websocket_upgrade", "send_400_response")


class HttpToolsProtocol(FileSending, httptools_impl.HttpToolsProtocol):
    """uvicorn's HttpToolsProtocol with sendfile."""

    _response_class = CountedResponse
