"""The doctor's findings: what each is, why it costs, how to mend it. Their ids never change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import ConfigurationError
from .model import Severity

__all__ = ["CATALOGUE", "Entry", "as_markdown", "explain"]


@dataclass(frozen=True)
class Entry:
    """One kind of finding.

    :ivar title: a few words, for lists.
    :ivar what: what was seen.
    :ivar why: what it costs, and whom.
    :ivar wsgifast: what wsgifast does about it without a change to the app.
    :ivar fixes: how to mend it in the app, by framework: "WSGI", "Flask", "Django", "FastAPI".
    """

    id: str
    severity: Severity
    title: str
    what: str
    why: str
    wsgifast: str
    fixes: Mapping[str, str] = field(default_factory=dict)


_RETURN_THE_FILE = {
    "WSGI": "return environ['wsgi.file_wrapper'](file)",
    "Flask": "return send_file(path)",
    "Django": "return FileResponse(path.open('rb'))",
    "FastAPI": "return FileResponse(path)",
}

_ENTRIES = (
    Entry(
        "WF001",
        "slow",
        "a list of small chunks",
        "The app returns a list or tuple of many small byte strings.",
        "A server makes a chunk, a system call and often a packet of each. The body exists "
        "already, so nothing is gained by sending it in pieces.",
        "WSGIFast(app) joins the list before the server sees it.",
        {
            "WSGI": "return [b''.join(parts)]",
            "Flask": "return ''.join(parts)",
            "Django": "return HttpResponse(''.join(parts))",
            "FastAPI": "return Response(b''.join(parts))",
        },
    ),
    Entry(
        "WF003",
        "slow",
        "an iterator of small chunks",
        "The app yields many small chunks quickly, one after the other.",
        "Each chunk is a system call, a chunk header and a pass through every middleware. The "
        "client sees none of them earlier than it would see a few large ones.",
        "WSGIFast(app, coalesce=True) gathers what comes quickly; FastWorker does so by itself.",
        {
            "WSGI": "Join lines up to some KiB before each yield.",
            "Flask": "Yield joined lines; for a streamed template: stream.enable_buffering(50)",
            "Django": "Give StreamingHttpResponse a generator of joined rows.",
            "FastAPI": "Give StreamingResponse an iterator of joined rows.",
        },
    ),
    Entry(
        "WF007",
        "slow",
        "a file, read in small blocks",
        "The app returns a file, or a wrapper around one, that the server reads and sends in "
        "small blocks or line by line.",
        "Every block is copied twice and costs two system calls; the kernel could send the file "
        "by itself.",
        "WSGIFast(app) hands the file to the server's own file wrapper, which is sendfile on "
        "gunicorn and FastWorker; ranges and 304s are answered too.",
        _RETURN_THE_FILE,
    ),
    Entry(
        "WF008",
        "slow",
        "a file behind a generator",
        "The app opens a file and yields its content itself: from outside it is a generator like "
        "any other.",
        "It costs what a file read in small blocks costs, and its thread stays with the slowest "
        "client.",
        "Nothing: it cannot be seen through safely, so it stays a stream. Return the file instead.",
        _RETURN_THE_FILE,
    ),
    Entry(
        "WF009",
        "slow",
        "a large file held in memory",
        "The app reads a large file whole before it answers.",
        "Each request takes that much memory for as long as its client reads.",
        "FastWorker bounds what it holds for slow clients; the app's own copy is the app's.",
        _RETURN_THE_FILE,
    ),
    Entry(
        "WF010",
        "info",
        "a slow client holds the app's thread",
        "The body is larger than the socket's buffers, and the thread that runs the app had to "
        "wait for a client that did not read.",
        "A server of so many threads answers nobody else while as many clients download slowly.",
        "FastWorker lets the thread go and sends on in the background.",
        {"WSGI": "gunicorn -k wsgifast.workers.FastWorker, or a proxy in front that buffers"},
    ),
    Entry(
        "WF011",
        "wrong",
        "a bare str or bytes",
        "The app returns a str or a bytes object in place of a list of them.",
        "A str is iterated letter by letter and bytes number by number: servers answer 500, or "
        "send a head without a body.",
        "WSGIFast(app) sends it as one chunk.",
        {"WSGI": "return [body]"},
    ),
    Entry(
        "WF012",
        "wrong",
        "chunks that are no bytes",
        "The app's iterable has something else than bytes in it.",
        "PEP 3333 allows bytes alone; servers fail in the middle of the response.",
        "WSGIFast(app) encodes text, and copies bytearrays and memoryviews.",
        {"WSGI": "yield text.encode()"},
    ),
    Entry(
        "WF013",
        "wrong",
        "a Content-Length that is not true",
        "The header says another number of bytes than the body has.",
        "With fewer bytes the client waits for the rest until a time-out; with more, the body is "
        "cut off, or the rest of it is taken for the next response.",
        "WSGIFast(app) corrects it where the whole body is at hand, never sends more, and closes "
        "the connection where less came.",
        {"WSGI": "Give len() of the encoded body, or no Content-Length at all."},
    ),
    Entry(
        "WF014",
        "wrong",
        "no body at all",
        "The app returns something that no server can iterate, or a head that cannot be sent.",
        "The server answers 500.",
        "WSGIFast(app) answers 500 too, and its log says what to return.",
        {"WSGI": "return [], and never None"},
    ),
    Entry(
        "WF015",
        "wrong",
        "the app raises",
        "The endpoint ended with an exception, or with a 5xx that its framework made of one.",
        "The client gets no answer of use, or a body that ends in the middle.",
        "Nothing: the exception is the app's.",
    ),
    Entry(
        "WF016",
        "wrong",
        "no end in time",
        "The endpoint did not end within the time limit.",
        "It may wait for something that is not there. A stream without end is right for events, "
        "and then its Content-Type says so.",
        "Nothing: it is in the app. --timeout gives it longer.",
    ),
    Entry(
        "WF020",
        "info",
        "a file without validators",
        "The response is a file, without ETag and Last-Modified.",
        "Clients fetch it whole again each time, and cannot resume a download.",
        "Where the app returns the file itself, WSGIFast(app) or ASGIFast(app) adds an ETag, and "
        "answers 304 and ranges. What reads the file by itself has to set an ETag.",
        {
            "Flask": "return send_file(path)",
            "Django": "Use ConditionalGetMiddleware.",
            "FastAPI": "return FileResponse(path)",
        },
    ),
    Entry(
        "WF021",
        "info",
        "no Content-Length",
        "The whole body is at hand, and the head does not say how long it is.",
        "Clients show no progress, and to HTTP/1.0 clients only the end of the connection tells "
        "the end.",
        "WSGIFast(app) adds it.",
        {"WSGI": "('Content-Length', str(len(body)))"},
    ),
    Entry(
        "WF022",
        "info",
        "encoded by the app",
        "The app, or a middleware of it, compresses the body.",
        "What is below it cannot be seen from here, sendfile and ranges cannot apply, and every "
        "request pays for the compression again.",
        "wsgifast compress makes .gz, .br and .zst of static files once, and StaticFiles sends "
        "them.",
    ),
    Entry(
        "WF023",
        "info",
        "a stream that pauses",
        "The app pauses between chunks, as event streams do.",
        "Each client has a thread of its own for as long as the stream lasts.",
        "Its chunks are passed on as they come, and are never gathered.",
    ),
    Entry(
        "WF030",
        "slow",
        "many small body messages",
        "The app sends many small http.response.body messages.",
        "Each is a write to the transport, a chunk header, and a pass through every middleware.",
        "ASGIFast(app) gathers what comes within one turn of the event loop.",
        {
            "FastAPI": "Give StreamingResponse an iterator of joined rows.",
            "Django": "Give StreamingHttpResponse an iterator of joined rows.",
        },
    ),
    Entry(
        "WF031",
        "slow",
        "a file, sent in messages",
        "The app reads a file and sends it in body messages, each by way of a thread.",
        "Each block costs a hop to a thread and back, and two copies.",
        "ASGIFast(app) offers http.response.pathsend, which Starlette's FileResponse uses; under "
        "asgifast's protocols for uvicorn it is sendfile.",
        {"FastAPI": "return FileResponse(path)", "Django": "return FileResponse(path.open('rb'))"},
    ),
    Entry(
        "WF032",
        "slow",
        "the event loop stands still",
        "The app computed or waited for long without a turn of the event loop.",
        "No other client of the process is answered meanwhile.",
        "Nothing: it is in the app.",
        {"FastAPI": "Write def in place of async def, or await anyio.to_thread.run_sync(...)."},
    ),
    Entry(
        "WF040",
        "slow",
        "head and body in packets of their own",
        "The body came in another packet than the head, and later.",
        "With Nagle's algorithm and delayed acknowledgements each response takes 40 ms longer.",
        "WSGIFast(app) sets TCP_NODELAY; FastWorker sends both together.",
    ),
    Entry(
        "WF041",
        "slow",
        "no keep-alive",
        "The server closes the connection after the response.",
        "Each request pays for a new connection, and over a network for TLS.",
        "FastWorker and wsgifast.devservers keep connections.",
    ),
    Entry(
        "WF042",
        "wrong",
        "a range that is not what was asked",
        "A 206 has other bytes, or another Content-Range, than was asked for.",
        "Resumed downloads are broken, and their users do not see it.",
        "WSGIFast(app) and StaticFiles answer ranges.",
    ),
    Entry(
        "WF043",
        "wrong",
        "a validator that lies",
        "An ETag or a Last-Modified changes although the bytes do not, or the server does not "
        "honour it.",
        "Caches fetch everything again, or keep what is stale.",
        "StaticFiles makes validators of what is on the disk.",
    ),
    Entry(
        "WF044",
        "wrong",
        "HEAD is another answer than GET",
        "HEAD has another status, type or length than GET, or a body.",
        "Download tools and monitors are told what is not so; a body spoils the connection.",
        "WSGIFast(app) sends no body to HEAD.",
    ),
    Entry(
        "WF045",
        "slow",
        "slow readers stop the others",
        "While some clients read slowly, another one was not answered, or late.",
        "Anyone with a few connections stops the server.",
        "FastWorker and asgifast's protocols serve the others meanwhile.",
    ),
    Entry(
        "WF046",
        "wrong",
        "a 304 or 204 with a body",
        "Bytes follow a head that is the end of its response.",
        "They are taken for the next response of the connection.",
        "WSGIFast(app) drops them.",
    ),
    Entry(
        "WF047",
        "info",
        "compressed without a length",
        "Compression has taken the Content-Length or the ranges away.",
        "No progress is shown, and no download resumed.",
        "StaticFiles sends siblings that were compressed before, with their length.",
    ),
)

CATALOGUE: Mapping[str, Entry] = {entry.id: entry for entry in _ENTRIES}


def explain(finding_id: str) -> str:
    """The text of `wsgifast doctor --explain`: of one finding, or for "all" their list.

    :raises ConfigurationError: if there is no such finding.
    """
    if finding_id == "all":
        return "\n".join(f"{e.id}  {e.severity:5}  {e.title}" for e in CATALOGUE.values())
    entry = CATALOGUE.get(finding_id.upper())
    if entry is None:
        known = ", ".join(CATALOGUE)
        raise ConfigurationError(f"--explain {finding_id}: there is no such finding, but {known}")
    parts = [f"{entry.id} ({entry.severity}): {entry.title}", entry.what, entry.why]
    if entry.fixes:
        parts.append("\n".join(["How to mend it:", *_fixes(entry, "  ")]))
    parts.append(f"What wsgifast does: {entry.wsgifast}")
    return "\n\n".join(parts)


def as_markdown() -> str:
    """All findings as a page of the documentation."""
    parts = [
        "# Findings of `wsgifast doctor`",
        "Their ids never change. `wrong` is broken on some server, `slow` costs more than it has "
        "to, `info` is worth knowing. This page is made of the list that the command itself uses.",
        "| id | severity | finding |\n|---|---|---|\n"
        + "\n".join(
            f"| [{e.id}](#{e.id.lower()}) | {e.severity} | {e.title} |" for e in CATALOGUE.values()
        ),
    ]
    for entry in CATALOGUE.values():
        parts += [f"## {entry.id}", f"**{entry.title}** ({entry.severity})", entry.what, entry.why]
        if entry.fixes:
            parts += ["How to mend it:", "\n".join(_fixes(entry, "    "))]
        parts.append(f"What wsgifast does: {entry.wsgifast}")
    return "\n\n".join(parts) + "\n"


def _fixes(entry: Entry, indent: str) -> list[str]:
    width = max(map(len, entry.fixes))
    return [f"{indent}{name:{width}}  {text}" for name, text in entry.fixes.items()]
