"""The project on FastWorker and on uvicorn with asgifast's protocol: vote, upload, download."""

from __future__ import annotations

import concurrent.futures
import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.apps import apps
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.test import Client

from tests.support.files import settle
from tests.support.http import Connection, Response
from tests.support.servers import LiveServer, live_server
from tests.workers.serving import gunicorn_command

pytestmark = pytest.mark.long

CONTENT = os.urandom(700_000)
PROJECT = "examples.django_project"


COMMANDS = {
    "fastworker": gunicorn_command(
        "-k", "wsgifast.workers.FastWorker", "-b", "127.0.0.1:{port}", f"{PROJECT}.wsgi"
    ),
    "uvicorn": [
        "python", "-m", "uvicorn", "--host", "127.0.0.1", "--port", "{port}",
        "--log-level", "warning", "--http", "asgifast.uvicorn:HttpToolsProtocol",
        f"{PROJECT}.asgi:application",
    ],
}  # fmt: skip


@pytest.fixture(scope="module", params=COMMANDS)
def server(request: pytest.FixtureRequest, data: Path) -> Iterator[LiveServer]:
    env = {"DJANGO_PROJECT_DATA": str(data)}
    with live_server(COMMANDS[request.param], env=env) as started:
        yield started


class Browser:
    """A client with cookies, on one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.cookies: dict[str, str] = {}

    def ask(self, path: str, method: str = "GET", body: bytes = b"", **headers: str) -> Response:
        cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        sent = [(name.replace("_", "-"), value) for name, value in headers.items()]
        sent.append(("Cookie", cookies))
        if "csrftoken" in self.cookies:
            sent.append(("X-CSRFToken", self.cookies["csrftoken"]))
        response = self._connection.request(path, method=method, headers=sent, body=body)
        for name, value in response.headers:
            if name.lower() == "set-cookie":
                cookie, _, content = value.partition(";")[0].partition("=")
                self.cookies[cookie] = content
        return response

    def post(self, path: str, **fields: str) -> Response:
        form = "&".join(f"{name}={value}" for name, value in fields.items()).encode()
        return self.ask(path, "POST", form, Content_Type="application/x-www-form-urlencoded")


@pytest.fixture
def browser(server: LiveServer) -> Iterator[Browser]:
    """A client of a user who has logged in, and has loaded a page with a form."""
    client = Client()
    client.force_login(get_user_model().objects.create(username=secrets.token_hex(8)))
    question = apps.get_model("polls", "Question").objects.create(text="Zwölf?")
    with Connection(server.address) as connection:
        browser = Browser(connection)
        browser.cookies["sessionid"] = client.cookies["sessionid"].value
        browser.ask(f"/{question.pk}/")
        yield browser


def test_project_serves_static_files(browser: Browser) -> None:
    page = browser.ask("/").body.decode()
    found = re.search(r'href="(/static/[^"]*)"', page)
    assert found is not None, page
    style = browser.ask(found[1], Accept_Encoding="gzip")
    assert (style.status, style.header("Content-Encoding")) == (200, "gzip")
    assert style.header("X-Content-Type-Options") == "nosniff"
    etag = style.header("ETag")
    assert etag is not None
    assert browser.ask(found[1], Accept_Encoding="gzip", If_None_Match=etag).status == 304
    part = browser.ask(found[1], Range="bytes=5-9")
    assert (part.status, part.body) == (206, browser.ask(found[1]).body[5:10])


def test_project_takes_a_vote_and_exports(browser: Browser) -> None:
    question = apps.get_model("polls", "Question").objects.latest("pk")
    choices = apps.get_model("polls", "Choice")
    choices.objects.bulk_create(
        choices(question=question, text=f"number {number}") for number in range(500)
    )
    choice = question.choice_set.first()
    page = f"/{question.pk}/"
    assert "Zwölf?" in browser.ask(page).body.decode()
    assert browser.post(page, choice=str(choice.pk)).status == 302
    lines = browser.ask("/votes.csv").body.decode().splitlines()
    assert "Zwölf?,number 0,1" in lines
    assert lines[-1] == "Zwölf?,number 499,0"


def test_project_takes_an_upload_and_sends_it(server: LiveServer, browser: Browser) -> None:
    boundary = secrets.token_hex(8)  # so long that it is not in CONTENT
    start = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="data.bin"'
    body = start.encode() + b"\r\n\r\n" + CONTENT + f"\r\n--{boundary}--\r\n".encode()
    form = {"Content_Type": f"multipart/form-data; boundary={boundary}"}
    sent = browser.ask("/documents/", "POST", body, **form)
    assert sent.status == 302, str(sent)
    document = apps.get_model("polls", "Document").objects.latest("pk")
    settle(Path(document.file.path))  # a file as new as the request has no ranges
    media = f"/media/{document.file.name}"
    download = sent.header("Location")
    assert download is not None
    for path in (download, media):
        whole = browser.ask(path)
        assert (whole.status, whole.body) == (200, CONTENT), server.log()[-3000:]
        part = browser.ask(path, Range="bytes=100000-399999")
        assert (part.status, part.body) == (206, CONTENT[100_000:400_000])
        parts = browser.ask(path, Range="bytes=0-9,600000-699999")
        assert parts.status == 206
        assert CONTENT[600_000:] in parts.body
        assert browser.ask(path, "HEAD").header("Content-Length") == str(len(CONTENT))
        etag = whole.header("ETag")
        assert etag is not None
        assert browser.ask(path, If_None_Match=etag).status == 304
    assert browser.ask(media).header("Cache-Control") == "private, no-cache"
    assert "attachment" in (browser.ask(download).header("Content-Disposition") or "")
    assert browser.ask("/media/nothing.bin").status == 404
    assert browser.post(media).status == 405
    browser.cookies.clear()
    assert browser.ask(media).status == 302


def test_database_connection_belongs_to_one_thread(server: LiveServer) -> None:
    """Django rejects the use of a connection in another thread, and the export reads row by row."""

    def ask(_: int) -> int:
        with Connection(server.address) as connection:
            responses = [connection.request(path) for path in ("/votes.csv", "/") * 5]
            return sum(response.status == 200 for response in responses)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(16))) == [10] * 16


# A user in a separate process, since Locust patches it. Each of its tasks runs once.
_EACH_TASK = """
import json, sys
from examples.django_project.locustfile import Project
from locust.env import Environment

Project.host = sys.argv[1]
environment = Environment(user_classes=[Project])
environment.create_local_runner()
user = Project(environment)
user.on_start()
for task in dict.fromkeys(Project.tasks):
    task(user)
errors = [error.to_dict() for error in environment.stats.errors.values()]
print(json.dumps({"names": [name for name, _ in environment.stats.entries], "errors": errors}))
"""


def test_user_of_locust_gets_its_pages(server: LiveServer) -> None:
    """The scenario of the load tests has no failure."""
    call_command("loaddata", "sample", verbosity=0)
    users = get_user_model().objects
    users.create_superuser("locust", "locust@example.com", "locust")
    host = "http://{}:{}".format(*server.address)
    command = [sys.executable, "-c", _EACH_TASK, host]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100)
    users.get(username="locust").delete()
    assert ran.returncode == 0, f"{ran.stderr[-3000:]}\n{server.log()[-3000:]}"
    report = json.loads(ran.stdout)
    assert report["errors"] == [], server.log()[-3000:]
    assert {"/", "/static/", "/question/", "/document/", "/document/ part"} <= {*report["names"]}


def test_events_arrive_one_by_one(browser: Browser) -> None:
    assert browser.ask("/ticks").body == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"
