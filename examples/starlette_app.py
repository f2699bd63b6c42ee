"""A Starlette app with asgifast's FileResponse and StaticFiles. Start it with gunicorn:

gunicorn -k asgifast.workers.FastUvicornWorker examples.starlette_app:app
"""

from collections.abc import AsyncIterator
from pathlib import Path

from asgifast import ASGIFast, FileResponse, StaticFiles
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Mount, Route


async def home(request: Request) -> PlainTextResponse:
    return PlainTextResponse("Grüße")


async def download(request: Request) -> FileResponse:
    return FileResponse(__file__)


async def report(request: Request) -> StreamingResponse:
    async def rows() -> AsyncIterator[str]:
        for row in range(20_000):
            yield f"{row},{row * row}\n"

    return StreamingResponse(rows(), media_type="text/csv")


site = Starlette(
    routes=[
        Route("/", home),
        Route("/download", download),
        Route("/report.csv", report),
        Mount("/static", StaticFiles(directory=Path(__file__).parent)),
    ]
)
app = ASGIFast(site)
