"""The choice by Accept-Encoding, compared with a slow and simple model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wsgifast.compression.codings import preferred_coding

ALL = ("zstd", "br", "gzip")


PREFERRED: list[tuple[str, tuple[str, ...], str | None]] = [
    ("gzip", ALL, "gzip"),
    ("gzip, deflate, br, zstd", ALL, "zstd"),
    ("gzip, deflate, br, zstd", ("br", "gzip"), "br"),
    ("gzip, deflate", ("br",), None),
    ("GZip", ALL, "gzip"),
    ("x-gzip", ALL, "gzip"),
    ("gzip;q=0.5, br;q=0.4", ALL, "gzip"),
    ("gzip; q=0.5 , br ; q=0.6", ALL, "br"),
    ("gzip;Q=0.5", ALL, "gzip"),
    ("gzip;q=1.000, br;q=0.999", ALL, "gzip"),
    ("gzip;q=0.", ALL, None),
    ("gzip;q=1.", ALL, "gzip"),
    # Rejected codings.
    ("gzip;q=0", ("gzip",), None),
    ("gzip;q=0.000", ("gzip",), None),
    ("*;q=0", ALL, None),
    ("*;q=0, gzip", ALL, "gzip"),
    # At equal weights, an uncompressed file is preferred to a coding that only `*` accepts.
    ("*", ALL, None),
    ("*;q=0.5", ALL, None),
    ("gzip;q=0, *", ALL, None),
    ("gzip, *", ALL, "gzip"),
    ("gzip;q=0.5, *;q=0.5", ALL, "gzip"),
    ("identity;q=0, *", ALL, "zstd"),
    ("identity;q=0.5, *", ALL, "zstd"),
    ("identity, *", ALL, None),
    ("*;q=0.1, gzip;q=0.2", ALL, "gzip"),
    ("", ALL, None),
    (" ", ALL, None),
    # Identity, explicit and implicit.
    ("identity", ALL, None),
    ("identity, gzip", ALL, "gzip"),
    ("identity, gzip;q=0.5", ALL, None),
    ("identity;q=0.5, gzip;q=0.5", ALL, "gzip"),
    ("identity;q=0.5, gzip;q=0.8", ALL, "gzip"),
    ("identity;q=0, gzip", ALL, "gzip"),
    ("identity;q=0, gzip;q=0.001", ALL, "gzip"),
    ("*, gzip;q=0.5", ("gzip",), None),
    # No coding is acceptable: the response is uncompressed (section 12.4.1).
    ("identity;q=0", ALL, None),
    ("identity;q=0, *;q=0", ALL, None),
    # Malformed members are skipped. The other members count.
    ("gzip;q=2, br", ALL, "br"),
    ("gzip;q=-1", ALL, None),
    ("gzip;q=.5", ALL, None),
    ("gzip;q=0.1234", ALL, None),
    ("gzip;q=1_0", ALL, None),
    ("gzip;q=\u0661", ALL, None),
    ("gzip;q=nan", ALL, None),
    ("gzip;level=9", ALL, None),
    ("gz ip, br", ALL, "br"),
    (",,gzip,,", ALL, "gzip"),
    ("br gzip", ALL, None),
    ("not-gzip", ALL, None),
]


def test_preferred_coding_follows_accept_encoding() -> None:
    for header, available, expected in PREFERRED:
        assert preferred_coding(header, available) == expected, header
        # Longer than the cached values.
        assert preferred_coding(header + "," * 500, available) == expected, header


_codings = st.sampled_from(["gzip", "br", "zstd", "identity", "*", "deflate"])
_thousandths = st.integers(0, 1000)


@given(st.dictionaries(_codings, _thousandths), st.permutations(ALL), st.integers(0, 3))
def test_preferred_coding_equals_the_model(
    weights: dict[str, int], order: list[str], count: int
) -> None:
    available = tuple(order[:count])
    header = ", ".join(f"{coding};q={weight / 1000:.3f}" for coding, weight in weights.items())
    named = [coding for coding in available if coding in weights]
    unnamed = [coding for coding in available if coding not in weights]
    choices: list[str | None] = [*named, None, *unnamed]

    def weight(choice: str | None) -> int:
        name = choice or "identity"
        return weights[name] if name in weights else weights.get("*", 0)

    best = max(map(weight, choices))
    # max() returns the first of equal items, in the order of the server's preference
    expected = max(choices, key=weight) if best else None
    assert preferred_coding(header, available) == expected


@given(st.text(max_size=300))
def test_any_accept_encoding_is_parsed(text: str) -> None:
    assert preferred_coding(text, ALL) in (*ALL, None)
