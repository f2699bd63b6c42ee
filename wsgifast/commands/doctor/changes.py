"""How a wrapped app's response differs from the app's own: it should not, and if so it is reported.

Responses change by themselves, too: they have the time in them, a token, a counter. So a difference
counts only if it is there each time that both are requested in turn, and the app's own response is
the same each time in this respect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from ...checks import size_text
from .model import Change, Endpoint, Recording

# In which order both are requested again where they differ: whether the app as it is goes first.
# After the first pair this is the Thue-Morse sequence: an app that answers in turns, such as every
# other request in another way, gives each side both answers.
_AGAIN_RAW_FIRST = (False, False, True)
# A browser's, shortened: with it, apps compress.
_ACCEPT_ENCODING = ("Accept-Encoding", "gzip")
# Of the server, or of one connection (RFC 9110 7.6.1).
_NOT_THE_APPS = frozenset(
    {"connection", "date", "keep-alive", "proxy-connection", "server", "transfer-encoding"}
)
# What wrapping adds, where the app sends none.
_ADDED = frozenset({"accept-ranges", "content-length", "etag", "last-modified"})
# A body that is compressed anew may have another size.
_GROWN = 1.1

Record = Callable[..., Recording]


def changes(
    contenders: Mapping[str, Record], endpoint: Endpoint, raw: Recording, wrapped: Recording
) -> Iterator[Change]:
    """How the responses of the wrapped app differ, at most one change of each kind.

    :param contenders: "raw", "wrapped", for ASGI also "sendfile" and "without pathsend".
    :param raw: the app's own response to the endpoint, which is right.
    :param wrapped: the wrapped app's.
    """
    ways = [way for way in ("wrapped", "sendfile") if way in contenders]
    accepts = replace(endpoint, headers=(*endpoint.headers, _ACCEPT_ENCODING))
    found: dict[str, Change] = {}
    for asked in (endpoint, accepts):
        if "failure" in found:
            break
        own = raw if asked is endpoint else contenders["raw"](asked)
        if own.failed:
            continue
        for way in ways:
            is_known = asked is endpoint and way == "wrapped"
            other = wrapped if is_known else contenders[way](asked)
            for kind, what in _lasting(contenders, way, asked, own, other).items():
                if kind not in found:
                    found[kind] = Change(kind, what, _is_cured(contenders, asked, kind))
    if "failure" in found or "status" in found:  # the rest follows from it
        found = {kind: found[kind] for kind in ("failure", "status") if kind in found}
    yield from found.values()


def _lasting(
    contenders: Mapping[str, Record], way: str, asked: Endpoint, own: Recording, other: Recording
) -> dict[str, str]:
    """The differences that are there each time, by their kinds."""
    found = _differences(own, other)
    for raw_first in _AGAIN_RAW_FIRST[: 1 if other.timed_out else None]:
        if not found:
            break
        order = ("raw", way) if raw_first else (way, "raw")
        both = {name: contenders[name](asked) for name in order}
        again = both["raw"]
        if again.failed:
            return {}
        same = {kind for kind in found if _facts(again).get(kind) == _facts(own).get(kind)}
        if "size" in found and again.sent_bytes <= _GROWN * own.sent_bytes:
            same.add("size")
        differs = _differences(again, both[way])
        found = {kind: what for kind, what in found.items() if kind in same & differs.keys()}
    return found


def _is_cured(contenders: Mapping[str, Record], asked: Endpoint, kind: str) -> bool:
    if "without pathsend" not in contenders:
        return False
    own, other = contenders["raw"](asked), contenders["without pathsend"](asked)
    return not own.failed and kind not in _differences(own, other)


def _facts(recording: Recording) -> dict[str, object]:
    """What has to be the same each time for a difference of a kind to count."""
    fields = _fields(recording)
    return {
        "failure": recording.failed,
        "status": recording.status,
        "coding": fields.pop("content-encoding", None),
        "body": recording.digest.digest(),
        **{f"header {name}": values for name, values in fields.items()},
    }


def _fields(recording: Recording) -> dict[str, list[str]]:
    fields: dict[str, list[str]] = {}
    for name, value in recording.headers:
        if name.lower() not in _NOT_THE_APPS:
            fields.setdefault(name.lower(), []).append(value.strip())
    return fields


def _differences(own: Recording, other: Recording) -> dict[str, str]:
    """How a wrapped app's response differs, by kinds."""
    if other.failed:
        why = other.error or other.problem or "it does not end in time"
        return {"failure": f"fails ({why}); as it is: {own.status}"}
    if other.status != own.status:
        return {"status": f"{other.status}; as it is: {own.status}"}
    found = {}
    fields, others = _fields(own), _fields(other)
    if fields.get("content-encoding") != others.get("content-encoding"):
        codings = [(each.get("content-encoding") or ["no coding"])[0] for each in (others, fields)]
        found["coding"] = f"{codings[0]}; as it is: {codings[1]}"
    if own.digest.digest() != other.digest.digest() and "coding" not in found:
        found["body"] = f"other bytes ({_size(other)}); as it is: {_size(own)}"
    if other.sent_bytes > _GROWN * own.sent_bytes:
        found["size"] = f"{_size(other)}; as it is: {_size(own)}"
    # Their values follow from the coding.
    derived = {"content-length", "content-encoding", "vary", "etag", "accept-ranges"}
    for name in sorted(fields.keys() | others.keys()):
        was, now = fields.get(name), others.get(name)
        is_added = was is None and name in _ADDED
        if was != now and not is_added and not (found and name in derived):
            shown = [", ".join(each) if each else "none" for each in (now, was)]
            found[f"header {name}"] = f"{name}: {shown[0]}; as it is: {shown[1]}"
    return found


def _size(recording: Recording) -> str:
    return size_text(recording.sent_bytes)
