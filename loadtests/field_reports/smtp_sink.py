"""An SMTP server that takes every message and forgets it: aiosmtpd's own, or ours.

python -m loadtests.field_reports.smtp_sink stock 127.0.0.1 2525
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from aiosmtpd.smtp import SMTP

from loadtests.command_line import command_line
from wsgifast.mail.server import SMTPServer

__all__: list[str] = []

SERVERS = {"stock": SMTP, "fast": SMTPServer}
# Room for the messages of 20 MB; aiosmtpd's default is 32 MiB.
DATA_SIZE_LIMIT_BYTES = 64 * 1024 * 1024


class Sink:
    """Answers with the size, so that the client can see that all of it came."""

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        return f"250 {len(envelope.content)}"


async def serve(kind: str, host: str, port: int) -> None:
    loop = asyncio.get_running_loop()
    options: dict[str, Any] = {
        "loop": loop,
        "hostname": "localhost",
        "data_size_limit": DATA_SIZE_LIMIT_BYTES,
    }
    server = await loop.create_server(lambda: SERVERS[kind](Sink(), **options), host, port)
    await server.serve_forever()


def main() -> None:
    parser = command_line("loadtests.field_reports.smtp_sink", __doc__)
    parser.add_argument("kind", choices=SERVERS, help="stock: aiosmtpd's; fast: ours")
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    given = parser.parse_args()
    # As in production: aiosmtpd logs each line at the level that is off by default.
    logging.getLogger("mail.log").setLevel(logging.ERROR)
    asyncio.run(serve(**vars(given)))


if __name__ == "__main__":
    main()
