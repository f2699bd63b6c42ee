"""What other clients notice of an attack by slow ones: FastWorker, gthread and nginx side by side.

    python -m loadtests.slow_attack [KEY ...] [--profile release]

p50 and p99 of a client that asks for 1 KiB again and again, every tenth time on a new connection,
beside each crowd of tests.support.slow_clients. nginx has no generator to be read slowly, and reads
the slow disk by threads (its `aio threads`). That disk is a FUSE file system that gives 256 KiB/s;
it needs root, and its row is left out without.
"""

from __future__ import annotations

from tests.support.slow_clients import KINDS
from tests.support.slow_disk import has_slow_disk

from .bench import Contender, Row, Table
from .command import main
from .peers import nginx
from .shapes import FILE_BYTES, SLOW_FILE_VARIABLE, payload_files
from .slow import DISK_FOLDER, OTHERS, beside, pair

__all__ = ["TABLES"]

LIST_BYTES = 5_000_000
# The crowd's path in our app; in nginx, None: it has nothing of that kind.
PATHS: dict[str | None, tuple[str, str | None]] = {
    None: ("/small/1024", "/1024.bin"),
    "heads byte by byte": ("/small/1024", "/1024.bin"),
    "790 kB heads": ("/small/1024", "/1024.bin"),
    "one-byte chunks": ("/upload", "/upload"),
    "silent bodies": ("/upload", "/upload"),
    "readers of a list": (f"/whole/{LIST_BYTES}", f"/{LIST_BYTES}.bin"),
    "readers of a file": ("/server-wrapper", f"/{FILE_BYTES}.bin"),
    "readers of a generator": ("/stream", None),
    "downloads from a slow disk": ("/slow-disk", "/slow-disk"),
    "silent connections": ("/small/1024", "/1024.bin"),
    "connection flood": ("/small/1024", "/1024.bin"),
}
ENVIRONMENT = {SLOW_FILE_VARIABLE: f"{{folder}}/{DISK_FOLDER}/file"}


def _row(kind: str | None) -> Row:
    disk = kind == "downloads from a slow disk"
    path, nginx_path = PATHS[kind]
    crowds = [] if kind is None else [(kind, None)]
    contenders: tuple[Contender, ...] = pair(path, env=ENVIRONMENT)
    if nginx_path is not None:
        client = beside(*crowds, asks="/1024.bin", disk=disk)
        peer = nginx(aio=disk, env=ENVIRONMENT)
        contenders += (Contender("nginx", peer, nginx_path, client, fresh=True),)
    key = f"attack.{(kind or 'none').replace(' ', '-')}"
    title = "nobody beside" if kind is None else f"{KINDS[kind].clients:,} {kind}"
    return Row(key, title, contenders, beside(*crowds, disk=disk), OTHERS)


prepare = payload_files(1024, LIST_BYTES, FILE_BYTES)
ROWS = [_row(kind) for kind in PATHS if kind != "downloads from a slow disk" or has_slow_disk()]
TABLES = [Table("slow-attack", "Others under attack", ROWS, prepare)]

if __name__ == "__main__":
    raise SystemExit(main("loadtests.slow_attack", __doc__, TABLES))
