"""A FastAPI app. Its last line adds asgifast.

uvicorn examples.fastapi_app:app --http asgifast.uvicorn:HttpToolsProtocol
"""

from collections.abc import Iterator

from asgifast import ASGIFast
from fastapi import FastAPI
from fastapi.responses import FileResponse, PlainTextResponse, StreamingResponse

api = FastAPI()


@api.get("/")
async def home() -> PlainTextResponse:
    return PlainTextResponse("Grüße")


@api.get("/download")
async def download() -> FileResponse:
    return FileResponse(__file__)


@api.get("/report.csv")
async def report() -> StreamingResponse:
    def rows() -> Iterator[str]:
        for row in range(2_000):
            yield f"{row},{row * row}\n"

    return StreamingResponse(rows(), media_type="text/csv")


app = ASGIFast(api)
