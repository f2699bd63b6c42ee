"""A real nginx in front of a server in the tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.programs import program
from tests.support.servers import LiveServer, free_port, live_server

_CONF = """
daemon off;
master_process off;
pid {folder}/pid;
error_log stderr;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {folder}/a; proxy_temp_path {folder}/b;
    fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
    server {{
        listen 127.0.0.1:{port};
        location / {{ proxy_pass {backend}; proxy_set_header Host $host; }}
        {locations}
    }}
}}
"""


@contextmanager
def nginx_before(backend: LiveServer, folder: Path, locations: str) -> Iterator[LiveServer]:
    """Run nginx in front of a server at a port of this host.

    :param folder: for its own files.
    :param locations: more location blocks, in the syntax of its configuration.
    :raises ProgramMissing: if it is not installed.
    """
    nginx = program("nginx")
    port = free_port()
    conf = folder / "nginx.conf"
    places = {"folder": folder, "port": port, "backend": backend.url}
    conf.write_text(_CONF.format(**places, locations=locations))
    argv = [nginx, "-e", "stderr", "-p", str(folder), "-c", str(conf)]
    with live_server(argv, ("127.0.0.1", port)) as started:
        yield started
