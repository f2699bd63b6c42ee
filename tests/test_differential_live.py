"""Apps that Hypothesis writes, wrapped, on live servers: their responses on one connection."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings

from tests.conftest import WSGI_SERVERS, wsgi_server
from tests.support.effort import effort
from tests.support.gunicorn import may_end_headers_with_bare_lf
from tests.support.http import Connection
from tests.support.scripts import Script, ScriptedApp, lawful, target_of
from tests.support.servers import LiveServer
from tests.test_differential import Server, is_for_real_servers, scripts, without_empty_chunks

pytestmark = pytest.mark.long

# They end a response to HEAD, or with 204, by a last chunk if the app gave no Content-Length.
ENDS_HEADERS_WITH_A_CHUNK = ("waitress", "pywsgi")


class Client:
    """A client with one connection for as many requests as the server allows."""

    def __init__(self, server: LiveServer, name: str) -> None:
        self.server_name = name
        self._address = server.address
        self._bare_lf = may_end_headers_with_bare_lf(server)
        self._connection: Connection | None = None

    def check(self, script: Script) -> None:
        """Request a script. Compare the response with that of its corrected form."""
        meant = Server(ScriptedApp(lawful(script)), script.method)
        if self.server_name in ENDS_HEADERS_WITH_A_CHUNK and meant.bodiless:
            return
        connection = self._connection or Connection(self._address, bare_lf=self._bare_lf)
        self._connection = None
        details = f"{script} was meant to be {vars(meant)}"
        try:
            response = connection.request(
                target_of(script), method=script.method, headers=self._leaving(meant)
            )
        except EOFError:
            connection.close()
            assert not meant.complete, details
            return
        if response.keep_alive and meant.error is None:
            self._connection = connection
        else:
            connection.close()
        if not meant.complete and not meant.body:
            # cheroot sends the app's headers, and the others an error page.
            assert response.status == 500 or not response.body, f"{response}\n{details}"
            return
        assert str(response.status) == (meant.status or "")[:3], f"{response}\n{details}"
        assert response.body == meant.body, f"{response}\n{details}"

    def _leaving(self, meant: Server) -> list[tuple[str, str]]:
        """Apache waits for 5 s before it closes a connection after a body that broke off."""
        breaks_off = not meant.complete and self.server_name == "mod_wsgi"
        return [("Connection", "close")] if breaks_off else []

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


# If an app replaces its headers, uWSGI leaves exc_info's error pending. The app then fails with a
# SystemError, without middleware too.
@pytest.fixture(scope="module", params=[name for name in WSGI_SERVERS if name != "uwsgi"])
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    with wsgi_server(request.param, "tests.support.scripts:app") as server:
        client = Client(server, request.param)
        yield client
        client.close()


@settings(max_examples=effort(60), suppress_health_check=[HealthCheck.filter_too_much])
@given(script=scripts.map(without_empty_chunks).filter(is_for_real_servers))
def test_every_response_is_as_the_app_meant(client: Client, script: Script) -> None:
    client.check(script)
