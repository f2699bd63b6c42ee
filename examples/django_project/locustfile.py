"""A load test with Locust: users log in, vote, upload and download.

    export DJANGO_SUPERUSER_PASSWORD=locust
    manage="python examples/django_project/manage.py"
    $manage migrate; $manage collectstatic --noinput; $manage loaddata sample
    $manage createsuperuser --noinput --username locust --email locust@example.com
    gunicorn -k wsgifast.workers.FastWorker --threads 4 examples.django_project.wsgi
    locust -f examples/django_project/locustfile.py --headless -u 4 -t 10s

To test ASGI, start `uvicorn --http asgifast.uvicorn:HttpToolsProtocol
examples.django_project.asgi:application` instead of gunicorn. The uploads remain in the database
until you run `manage.py flush`.
"""

from __future__ import annotations

import os
import random
import re
from typing import Any
from urllib.parse import urlencode

from locust import constant, task
from locust.exception import StopUser

from wsgifast.commands.bench.locust_process import DownloadUser

LOGIN = "/admin/login/"
FORM = "application/x-www-form-urlencoded"
BOUNDARY = "locust-8a1f"
UPLOAD = os.urandom(300_000)


class Project(DownloadUser):
    """A user of the polls."""

    host = "http://127.0.0.1:8000"
    wait_time = constant(0)

    def on_start(self) -> None:
        """Log in, and upload a document for the tasks that download it."""
        page = self.client.get("/").text or ""
        self._style = re.findall(r'href="(/static/[^"]*)"', page)[0]
        self._questions = re.findall(r'href="(/\d+/)"', page)
        # The page contains a form, so Django sets the cookie with the CSRF token.
        self.client.get(self._questions[0], name="/question/")
        password = os.environ.get("DJANGO_SUPERUSER_PASSWORD", "locust")
        form = {"username": "locust", "password": password, "next": "/"}
        if self._post(LOGIN, urlencode(form).encode(), FORM) is None:
            raise StopUser  # Locust's table contains the failed request
        self._document = ""
        self.upload()

    def _post(self, path: str, body: bytes, content_type: str) -> str | None:
        """Send a form. Return the location of the redirection, or None if the form is refused."""
        token = next((c.value for c in self.client.cookiejar if c.name == "csrftoken"), None)
        headers = {"Content-Type": content_type, "X-CSRFToken": token or ""}
        post: Any = self.client.post
        name = re.sub(r"^/\d+/$", "/question/", path)
        with post(path, name=name, data=body, headers=headers, catch_response=True) as response:
            location: str | None = (response.headers or {}).get("Location")
            if response.status_code != 302 or location is None:
                response.failure(f"status {response.status_code} in place of a redirection")
                return None
        return location

    @task(5)
    def page(self) -> None:
        self.download("/")

    @task(5)
    def style(self) -> None:
        self.download(self._style, name="/static/")

    @task(2)
    def vote(self) -> None:
        question = random.choice(self._questions)
        response = self.client.get(question, name="/question/")
        choices = re.findall(r'name="choice" value="(\d+)"', response.text or "")
        if choices:
            self._post(question, f"choice={random.choice(choices)}".encode(), FORM)

    @task(1)
    def upload(self) -> None:
        headers = (
            f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="data.bin"'
        )
        body = b"".join((headers.encode(), b"\r\n\r\n", UPLOAD, f"\r\n--{BOUNDARY}--\r\n".encode()))
        form = f"multipart/form-data; boundary={BOUNDARY}"
        self._document = self._post("/documents/", body, form) or self._document

    @task(4)
    def document(self) -> None:
        self.download(self._document, name="/document/", expected=len(UPLOAD))

    @task(4)
    def part(self) -> None:
        headers = {"Range": "bytes=100000-199999"}
        self.download(self._document, name="/document/ part", expected=100_000, headers=headers)

    @task(1)
    def export(self) -> None:
        self.download("/votes.csv")
