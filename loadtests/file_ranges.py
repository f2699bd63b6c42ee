"""A 10 MiB file, whole and by ranges of 1 MiB: who keeps sendfile?

python -m loadtests.file_ranges

gunicorn's gthread worker, one process, four threads. Werkzeug's send_file and WhiteNoise answer a
range by reading; behind WSGIFast the same ranges go out by sendfile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from werkzeug.utils import send_file
from whitenoise import WhiteNoise

from loadtests.command_line import command_line
from loadtests.measuring import (
    Measured,
    Ratio,
    alternate,
    drive,
    free_port,
    gunicorn_command,
    measured,
    running,
    save,
    table,
    temporary_folder,
)
from wsgifast import WSGIFast

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

MIB = 1024 * 1024
FILE_BYTES = 10 * MIB
MEGABYTES_A_RUN = 500
ROUNDS = 5


def make_app(folder: str) -> Any:
    """/werkzeug/file, /wrapped/file and /whitenoise/file: the same file three ways."""

    def werkzeug_app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        response = send_file(Path(folder, "file"), environ, conditional=True)
        return response(environ, start_response)

    apps: dict[str, Any] = {
        "werkzeug": werkzeug_app,
        "wrapped": WSGIFast(werkzeug_app),
        "whitenoise": WhiteNoise(werkzeug_app, root=folder, prefix="whitenoise/"),
    }

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        answer: Iterable[bytes] = apps[environ["PATH_INFO"].split("/")[1]](environ, start_response)
        return answer

    return app


def main() -> None:
    command_line("loadtests.file_ranges", __doc__).parse_args()
    rows, figures = [], {}
    with temporary_folder("ranges") as folder:
        Path(folder, "file").write_bytes(bytes(FILE_BYTES))
        address = ("127.0.0.1", free_port())
        command = gunicorn_command(f"loadtests.file_ranges:make_app({folder!r})", address)
        root = Path(__file__).resolve().parents[1]
        with running(command, address, cwd=root) as server:
            for name, size, header in (
                ("whole", FILE_BYTES, ()),
                ("1 MiB range", MIB, (f"Range: bytes={3 * MIB}-{4 * MIB - 1}",)),
            ):
                runs = alternate(
                    {
                        app: measure(server, address, f"/{app}/file", size, header)
                        for app in ("werkzeug", "whitenoise", "wrapped")
                    },
                    rounds=ROUNDS,
                )
                speed = {a: [run.load.megabytes_per_s for run in r] for a, r in runs.items()}
                cpu = {a: [run.cpu_s_per_gb for run in r] for a, r in runs.items()}
                figures[name] = runs
                rows += [
                    [
                        f"{name}, {app}",
                        median(speed[app]),
                        median(cpu[app]),
                        Ratio.of(speed["wrapped"], speed[app]) if app != "wrapped" else None,
                    ]
                    for app in runs
                ]
    print(table(["", "MB/s", "CPU s/GB", "wrapped / this"], rows))
    print(save("file-ranges", {"runs": figures}))


def measure(
    server: Any, address: tuple[str, int], path: str, size: int, header: tuple[str, ...]
) -> Callable[[], Measured]:
    requests = MEGABYTES_A_RUN * 1_000_000 // size
    load = partial(
        drive, address, path, requests=requests, seconds=5.0, headers=header, body_bytes=size
    )
    return partial(measured, server, load)


if __name__ == "__main__":
    main()
