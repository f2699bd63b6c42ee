"""The doctor's findings: what each is, what it costs, how to fix it. Their ids never change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..errors import ConfigurationError
from .model import Severity

__all__ = ["CATALOGUE", "Entry", "as_markdown", "explain", "known_ids"]


@dataclass(frozen=True)
class Entry:
    """One kind of finding.

    :ivar title: a few words, for lists.
    :ivar what: what was seen.
    :ivar why: what it costs, and whom.
    :ivar wsgifast: what wsgifast does about it without a change to the app.
    :ivar fixes: how to fix it in the app, by framework: "WSGI", "Flask", "Django", "FastAPI".
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
        "Each string becomes a chunk, a system call and often a packet. The body is complete, so "
        "sending it in pieces gains nothing.",
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
        "WSGIFast(app, coalesce=True) joins chunks that come in quick succession; FastWorker "
        "does so without the option.",
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
        "Every block is copied twice and costs two system calls. The kernel can send the file "
        "without either.",
        "WSGIFast(app) passes the file to the server's own file wrapper, which uses sendfile on "
        "gunicorn and FastWorker, and answers ranges and conditional requests.",
        _RETURN_THE_FILE,
    ),
    Entry(
        "WF008",
        "slow",
        "a file behind a generator",
        "The app opens a file and yields its content: from outside it looks like any other "
        "generator.",
        "It costs as much as a file that is read in small blocks, and a slow client occupies the "
        "app's thread.",
        "Nothing: what a generator reads cannot be known. Return the file instead.",
        _RETURN_THE_FILE,
    ),
    Entry(
        "WF009",
        "slow",
        "a large file read into memory",
        "The app reads all of a large file before it responds.",
        "Each request needs that much memory until its client has the last byte.",
        "FastWorker limits what it keeps for slow clients, but not the app's own copy.",
        _RETURN_THE_FILE,
    ),
    Entry(
        "WF010",
        "info",
        "a slow client occupies the app's thread",
        "The body is larger than the socket's buffers, so the thread that runs the app had to "
        "wait for a client that did not read.",
        "As many slow clients as the server has threads keep it from answering anybody else.",
        "FastWorker frees the thread and sends the rest in the background.",
        {"WSGI": "gunicorn -k wsgifast.workers.FastWorker, or a proxy in front that buffers"},
    ),
    Entry(
        "WF011",
        "wrong",
        "a bare str or bytes",
        "The app returns a str or a bytes object in place of a list of them.",
        "Iterating a str yields letters, and iterating bytes yields integers: servers answer 500, "
        "or send a head without a body.",
        "WSGIFast(app) sends it as one chunk.",
        {"WSGI": "return [body]"},
    ),
    Entry(
        "WF012",
        "wrong",
        "chunks that are not bytes",
        "The app's iterable yields something other than bytes.",
        "PEP 3333 allows only bytes; servers fail in the middle of the response.",
        "WSGIFast(app) encodes text, and copies bytearrays and memoryviews.",
        {"WSGI": "yield text.encode()"},
    ),
    Entry(
        "WF013",
        "wrong",
        "a wrong Content-Length",
        "The header does not match the number of bytes in the body.",
        "If the body is shorter, the client waits for the rest until a timeout; if it is longer, "
        "it is truncated, or the rest is taken for the next response.",
        "WSGIFast(app) corrects it if the body is complete, never sends more, and closes the "
        "connection if there was less.",
        {"WSGI": "Send len() of the encoded body, or no Content-Length at all."},
    ),
    Entry(
        "WF014",
        "wrong",
        "no valid response",
        "The app returns something that cannot be iterated, or an invalid status or header.",
        "The server answers 500.",
        "WSGIFast(app) also answers 500, and logs what to return instead.",
        {"WSGI": "return [] rather than None"},
    ),
    Entry(
        "WF015",
        "wrong",
        "the app raises",
        "The endpoint raised an exception, or answered with a 5xx status.",
        "The client gets an error, or a body that ends in the middle.",
        "Nothing: the error is in the app.",
    ),
    Entry(
        "WF016",
        "wrong",
        "timed out",
        "The response was not complete within the time limit.",
        "The app may be waiting for something that is not there. An endless stream is fine for "
        "events, if its Content-Type is text/event-stream.",
        "Nothing: the cause is in the app. --timeout allows it more time.",
    ),
    Entry(
        "WF020",
        "info",
        "a file without validators",
        "The response is a file, but has neither an ETag nor Last-Modified.",
        "Clients download all of it again each time, and cannot resume a download.",
        "If the app returns the file itself, WSGIFast(app) or ASGIFast(app) adds an ETag and "
        "answers ranges and conditional requests. An app that reads the file must set an ETag.",
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
        "The body is complete, but the response does not say how long it is.",
        "Clients cannot show progress, and HTTP/1.0 clients cannot tell whether they got all.",
        "WSGIFast(app) adds it.",
        {"WSGI": "('Content-Length', str(len(body)))"},
    ),
    Entry(
        "WF022",
        "info",
        "compressed by the app",
        "The app, or one of its middlewares, compresses the body.",
        "sendfile and ranges cannot be used, and every request pays for the compression again.",
        "wsgifast compress writes .gz, .br and .zst files once, and StaticFiles sends them.",
    ),
    Entry(
        "WF023",
        "info",
        "a stream that pauses",
        "The app pauses between chunks, as event streams do.",
        "Each client occupies a thread for as long as the stream lasts.",
        "It passes the chunks on as they come, and never joins them.",
    ),
    Entry(
        "WF024",
        "info",
        "a file that loses its compression",
        "A middleware compresses the file as it is read, but not when the server sends it, as "
        "Starlette's GZipMiddleware does.",
        "Under ASGIFast or asgifast's protocols the server takes less CPU time for it, and clients "
        "load more bytes.",
        "wsgifast compress writes .gz, .br and .zst files once, and asgifast.StaticFiles sends "
        "them. ASGIFast(app, pathsend=False) has the app read its files, so that they are "
        "compressed as before.",
    ),
    Entry(
        "WF030",
        "slow",
        "many small body messages",
        "The app sends many small http.response.body messages.",
        "Each is a write to the transport, a chunk header, and a pass through every middleware.",
        "ASGIFast(app) joins messages that are sent within one turn of the event loop.",
        {
            "FastAPI": "Give StreamingResponse an iterator of joined rows.",
            "Django": "Give StreamingHttpResponse an iterator of joined rows.",
        },
    ),
    Entry(
        "WF031",
        "slow",
        "a file sent in messages",
        "The app reads a file and sends it in body messages, reading each block in a thread.",
        "Each block costs a switch to a thread and back, and two copies.",
        "ASGIFast(app) offers http.response.pathsend, which Starlette's FileResponse uses; "
        "asgifast's protocols for uvicorn implement it by sendfile.",
        {"FastAPI": "return FileResponse(path)", "Django": "return FileResponse(path.open('rb'))"},
    ),
    Entry(
        "WF032",
        "slow",
        "a blocked event loop",
        "The app computed or waited for a long time without returning to the event loop.",
        "Meanwhile the process answers no other client.",
        "Nothing: the cause is in the app.",
        {"FastAPI": "Use def instead of async def, or await anyio.to_thread.run_sync(...)."},
    ),
    Entry(
        "WF040",
        "slow",
        "head and body in separate packets",
        "The body came in another packet than the head, some time later.",
        "Nagle's algorithm and delayed acknowledgements add 40 ms to each response.",
        "WSGIFast(app) sets TCP_NODELAY; FastWorker sends both together.",
    ),
    Entry(
        "WF041",
        "slow",
        "no keep-alive",
        "The server closes the connection after the response.",
        "Each request pays for a new connection, and usually for a TLS handshake.",
        "FastWorker and wsgifast.devservers keep connections open.",
    ),
    Entry(
        "WF042",
        "wrong",
        "a wrong range",
        "A 206 response has other bytes, or another Content-Range, than requested.",
        "Resumed downloads are silently corrupt.",
        "WSGIFast(app) and StaticFiles answer ranges correctly.",
    ),
    Entry(
        "WF043",
        "wrong",
        "an unreliable validator",
        "An ETag changes although the bytes do not, or the server ignores If-None-Match or "
        "If-Modified-Since.",
        "Caches download everything again.",
        "StaticFiles derives validators from the files.",
    ),
    Entry(
        "WF044",
        "wrong",
        "HEAD and GET disagree",
        "The response to HEAD has another status, type or length than that to GET, or a body.",
        "Download tools and monitors are misled; a body makes the connection unusable.",
        "WSGIFast(app) sends no body in response to HEAD.",
    ),
    Entry(
        "WF045",
        "slow",
        "slow readers block other clients",
        "While some clients read slowly, another one was answered late or not at all.",
        "Anyone with a few connections can stop the server.",
        "FastWorker and asgifast's protocols serve the others meanwhile.",
    ),
    Entry(
        "WF046",
        "wrong",
        "a 304 or 204 with a body",
        "Bytes follow a head that ends its response.",
        "The client takes them for the next response.",
        "WSGIFast(app) drops them.",
    ),
    Entry(
        "WF047",
        "info",
        "compressed without a length",
        "Compression has removed the Content-Length or the ranges.",
        "Clients can neither show progress nor resume a download.",
        "StaticFiles sends files that were compressed in advance, with their length.",
    ),
)

CATALOGUE: Mapping[str, Entry] = {entry.id: entry for entry in _ENTRIES}


def explain(finding_id: str) -> str:
    """The text of `wsgifast doctor --explain`: of one finding, or for "all" their list.

    :raises ConfigurationError: if there is no such finding.
    """
    if finding_id == "all":
        return "\n".join(f"{e.id}  {e.severity:5}  {e.title}" for e in CATALOGUE.values())
    (known,) = known_ids([finding_id])
    entry = CATALOGUE[known]
    parts = [f"{entry.id} ({entry.severity}): {entry.title}", entry.what, entry.why]
    if entry.fixes:
        parts.append("\n".join(["How to fix it:", *_fixes(entry, "  ")]))
    parts.append(f"What wsgifast does: {entry.wsgifast}")
    return "\n\n".join(parts)


def known_ids(given: Iterable[str]) -> set[str]:
    """Ids as they stand in the catalogue.

    :raises ConfigurationError: for one that does not.
    """
    ids = {each.upper() for each in given}
    unknown = sorted(ids - CATALOGUE.keys())
    if unknown:
        raise ConfigurationError(f"there is no finding {unknown[0]}; known: {', '.join(CATALOGUE)}")
    return ids


def as_markdown() -> str:
    """All findings as a page of the documentation."""
    parts = [
        "# Findings of `wsgifast doctor`",
        "The ids never change. `wrong` means broken on some server, `slow` that it costs more than "
        "necessary, and `info` that it is worth knowing. This page is generated from the "
        "list that the command uses.",
        "| id | severity | finding |\n|---|---|---|\n"
        + "\n".join(
            f"| [{e.id}](#{e.id.lower()}) | {e.severity} | {e.title} |" for e in CATALOGUE.values()
        ),
    ]
    for entry in CATALOGUE.values():
        parts += [f"## {entry.id}", f"**{entry.title}** ({entry.severity})", entry.what, entry.why]
        if entry.fixes:
            parts += ["How to fix it:", "\n".join(_fixes(entry, "    "))]
        parts.append(f"What wsgifast does: {entry.wsgifast}")
    return "\n\n".join(parts) + "\n"


def _fixes(entry: Entry, indent: str) -> list[str]:
    width = max(map(len, entry.fixes))
    return [f"{indent}{name:{width}}  {text}" for name, text in entry.fixes.items()]
