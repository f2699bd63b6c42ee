"""Requests as attackers write them: seeds, mutations of seeds, and splits into packets."""

from __future__ import annotations

import itertools
import random


def _request(line: str, *fields: str, body: bytes = b"") -> bytes:
    headers = "\r\n".join([line, "Host: localhost", *fields, "", ""])
    return headers.encode("latin-1") + body


_SECOND = _request("GET /second?x=1 HTTP/1.1", "X-Second: yes")

# Correct parts, and malformed parts of known attacks.
SEEDS = [
    _request("GET / HTTP/1.1"),
    _request("GET /a%20b/c?d=e%26f HTTP/1.1", "Accept: text/html, */*;q=0.8", "Cookie: a=b; c=d"),
    _request("HEAD /h HTTP/1.1", "X-One: 1", "X-Two:2", "X-One: 3"),
    _request("OPTIONS * HTTP/1.1"),
    _request("GET http://localhost/absolute HTTP/1.1"),
    _request("GET /old HTTP/1.0", "Connection: keep-alive"),
    _request("POST /form HTTP/1.1", "Content-Length: 11", body=b"hello=world"),
    _request("POST /empty HTTP/1.1", "Content-Length: 0"),
    _request("PUT /c HTTP/1.1", "Transfer-Encoding: chunked", body=b"5\r\nhello\r\n0\r\n\r\n"),
    _request(
        "PUT /c HTTP/1.1",
        "Transfer-Encoding: chunked",
        "Trailer: X-Sum",
        body=b"1;name=value\r\na\r\n0a\r\n0123456789\r\n00\r\nX-Sum: 1\r\n\r\n",
    ),
    _request(
        "POST /both HTTP/1.1",
        "Content-Length: 5",
        "Transfer-Encoding: chunked",
        body=b"0\r\n\r\n" + _SECOND,
    ),
    _request("POST /two HTTP/1.1", "Content-Length: 5", "Content-Length: 6", body=b"hello!"),
    _request("POST /same HTTP/1.1", "Content-Length: 5, 5", body=b"hello"),
    _request("POST /plus HTTP/1.1", "Content-Length: +5", body=b"hello"),
    _request("POST /te HTTP/1.1", "Transfer-Encoding: xchunked", body=b"0\r\n\r\n"),
    _request("POST /te HTTP/1.1", "Transfer-Encoding: identity, chunked", body=b"0\r\n\r\n"),
    _request("POST /te HTTP/1.1", "Transfer-Encoding : chunked", body=b"0\r\n\r\n"),
    _request("POST /te HTTP/1.1", "Transfer_Encoding: chunked", body=b"0\r\n\r\n"),
    _request("GET /fold HTTP/1.1", "X-Fold: a", " b"),
    _request("GET /nul HTTP/1.1", "X-Nul: a\0b"),
    _request("GET /latin HTTP/1.1", "X-Latin: \xe9\xff"),
    _request("GET /close HTTP/1.1", "Connection: x, close") + _SECOND,
    _request("GET /stay HTTP/1.1", "Connection: Keep-Alive, x") + _SECOND,
    _request("POST /expect HTTP/1.1", "Content-Length: 5", "Expect: 100-continue", body=b"hello"),
    _request("GET /upgrade HTTP/1.1", "Connection: Upgrade", "Upgrade: h2c") + _SECOND,
    _request("POST /first HTTP/1.1", "Content-Length: 3", body=b"abc") + _SECOND * 2,
    _request("PUT /c HTTP/1.1", "Transfer-Encoding: chunked", body=b"3\r\nabc\r\n0\r\n\r\n")
    + _SECOND,
    _request("PUT /c HTTP/1.1", "Transfer-Encoding: chunked", body=b"3\nabc\n0\n\n") + _SECOND,
    _request("PUT /c HTTP/1.1", "Transfer-Encoding: chunked", body=b"0x3\r\nabc\r\n0\r\n\r\n"),
    _request("PUT /c HTTP/1.1", "Transfer-Encoding: chunked", body=b"ffffffffffffffff1\r\nabc\r\n"),
    _request("GET /many HTTP/1.1", *[f"X-{n}: {n}" for n in range(90)]),
    _request("GET /" + "a" * 3000 + " HTTP/1.1"),
    b"GET /bare\nHost: localhost\n\n",
    b"\r\n\r\n" + _request("GET /blank-first HTTP/1.1"),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
]

# Lines that change the meaning of the others.
_LINES = [
    b"Content-Length: 5",
    b"Content-Length: 0",
    b"Content-Length: 00000000000000000005",
    b"Content-Length: 9999999999999999999",
    b"Content-Length: -1",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: chunked, chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding:\tchunked",
    b"Transfer-Encoding: CHUNKED",
    b"Connection: close",
    b"Connection: keep-alive, Transfer-Encoding",
    b"Expect: 100-continue",
    b"Expect: nothing",
    b" folded: line",
    b": no name",
    b"X-Forwarded-Proto: https",
    b"SCRIPT_NAME: /x",
    b"Proxy: http://attacker",
]
_BYTES = [b"\r", b"\n", b"\r\n", b"\0", b" ", b"\t", b":", b";", b",", b"0", b"f", b"-", b"_", b"%"]
_BYTES += [b"\x0b", b"\x0c", b"\x85", b"\xff", b"\xe2\x80\xa8", b"0\r\n\r\n", b"\r\n\r\n"]


def mutated(chance: random.Random) -> bytes:
    """Return a seed with up to three changes, and sometimes with a request after it."""
    data = chance.choice(SEEDS)
    for _ in range(chance.choice((0, 1, 1, 1, 1, 2, 3))):
        data = _MUTATIONS[chance.randrange(len(_MUTATIONS))](data, chance)
    if chance.random() < 0.3:
        data += _SECOND
    return data


def cuts(data: bytes, chance: random.Random) -> list[bytes]:
    """Split the bytes into several packets: at a few places, or inside some line ends."""
    if chance.random() < 0.3:
        places = {n + 1 for n, byte in enumerate(data) if byte == 13}
        places = set(chance.sample(sorted(places), min(len(places), 6)))
    else:
        places = {chance.randrange(len(data) + 1) for _ in range(chance.randrange(1, 6))}
    edges = [0, *sorted(places - {0, len(data)}), len(data)]
    return [data[start:stop] for start, stop in itertools.pairwise(edges)]


def _insert(data: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(data) + 1)
    return data[:place] + chance.choice(_BYTES) + data[place:]


def _delete(data: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(data) + 1)
    return data[:place] + data[place + chance.randrange(1, 4) :]


def _replace(data: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(data) + 1)
    new = chance.choice(_BYTES)
    return data[:place] + new + data[place + len(new) :]


def _add_line(data: bytes, chance: random.Random) -> bytes:
    lines = data.split(b"\r\n")
    lines.insert(chance.randrange(1, max(2, len(lines))), chance.choice(_LINES))
    return b"\r\n".join(lines)


def _move_line(data: bytes, chance: random.Random) -> bytes:
    lines = data.split(b"\r\n")
    lines.insert(chance.randrange(len(lines)), lines.pop(chance.randrange(len(lines))))
    return b"\r\n".join(lines)


def _repeat_line(data: bytes, chance: random.Random) -> bytes:
    lines = data.split(b"\r\n")
    lines.insert(chance.randrange(len(lines)), chance.choice(lines))
    return b"\r\n".join(lines)


def _truncate(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(1, len(data) + 1)]


_MUTATIONS = [
    _insert, _insert, _delete, _replace, _replace, _add_line, _add_line, _move_line, _repeat_line,
    _truncate,
]  # fmt: skip
