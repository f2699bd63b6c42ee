"""The ASGI examples, served by the command that each shows, with every byte compared."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.support.servers import ROOT, live_server


@pytest.mark.parametrize(("example", "rows"), [("fastapi_app", 2_000), ("starlette_app", 20_000)])
def test_asgi_example_serves_every_byte(example: str, rows: int) -> None:
    csv = "".join(f"{row},{row * row}\n" for row in range(rows)).encode()
    source = (ROOT / "examples" / f"{example}.py").read_bytes()
    found = re.search(r"^(uvicorn|gunicorn) .*$", source.decode(), re.MULTILINE)
    assert found is not None, f"examples/{example}.py shows no command"
    bind = "--bind 127.0.0.1:{port} --no-control-socket"
    if found[1] == "uvicorn":
        bind = "--port {port}"
    with live_server(["python", "-m", *shlex.split(f"{found[0]} {bind}")]) as server:
        assert server.get("/").body == "Grüße".encode()
        assert server.get("/report.csv").body == csv
        assert server.get("/download").body == source
        part = server.get("/download", headers=[("Range", "bytes=10-19")])
        assert (part.status, part.body) == (206, source[10:20])
        if example == "starlette_app":
            assert server.get(f"/static/{example}.py").body == source


def test_no_asgi_example_is_left_out() -> None:
    asgi = [p.stem for p in (ROOT / "examples").glob("*.py") if "asgifast" in p.read_text()]
    assert sorted(asgi) == ["fastapi_app", "starlette_app"]
