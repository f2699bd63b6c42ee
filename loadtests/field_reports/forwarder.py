"""A plain TCP forwarder, as stands in front of many servers: it reads, and writes what it read.

python -m loadtests.field_reports.forwarder 127.0.0.1 1143 127.0.0.1 143
"""

from __future__ import annotations

import asyncio
import contextlib

from loadtests.command_line import command_line

__all__: list[str] = []


async def serve(host: str, port: int, to_host: str, to_port: int) -> None:
    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward_reader, onward_writer = await asyncio.open_connection(to_host, to_port)
        await asyncio.gather(pump(reader, onward_writer), pump(onward_reader, writer))

    server = await asyncio.start_server(accepted, host, port)
    await server.serve_forever()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


def main() -> None:
    parser = command_line("loadtests.field_reports.forwarder", __doc__)
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("to_host")
    parser.add_argument("to_port", type=int)
    asyncio.run(serve(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
