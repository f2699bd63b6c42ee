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

    def send_400_response(self, msg: str) -> None:
        """What is no request comes behind one that is being answered: close behind the response.

        httptools parses ahead, and uvicorn sends the 400 at once, into the middle of a body.
        """
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body:
            super().send_400_response(msg)
        else:
            self.shutdown()  # uvicorn's: close behind this response
