"""Text for a terminal or a page: foreign text contains nothing that either would interpret."""

from __future__ import annotations

import html
import io
import os
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import forkserver
from tests.support.servers import ROOT
from wsgifast.commands.page import Bar, escaped, ratio_chart
from wsgifast.commands.terminal import RED, RESET, cut, fitted, printable, show, table, width_of

# ESC, BEL, CSI as one character, DEL, a bidirectional override and isolate, a surrogate, line ends.
HOSTILE = "\x1b]0;x\x07 \x9b2J \x7f \u202e\u2066 \udcff \r\n\u2028 \u00ad\ufeff"
texts = st.text(st.characters() | st.sampled_from(HOSTILE))


@given(texts)
def test_printable_leaves_nothing_that_acts(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert {unicodedata.category(c) for c in shown}.isdisjoint({"Cc", "Cf", "Cs", "Zl", "Zp"})
    assert printable(shown) == shown
    if text.isprintable():
        assert shown == text


def test_printable_names_what_it_escapes() -> None:
    assert printable("a\x1b[2J\x9b\x7f\u202e\udcff\n") == r"a\x1b[2J\x9b\x7f\u202e\udcff\n"


@given(texts)
def test_escaped_text_makes_no_markup(text: str) -> None:
    shown = escaped(text)
    assert not set("<>\"'") & set(shown)
    assert shown.replace("\n", "").isprintable()
    assert html.unescape(shown).replace("\n", "").isprintable()


@given(texts)
def test_charts_escape_labels(text: str) -> None:
    label = f"<script>{text}"
    chart = ratio_chart([Bar(label, None, label, True)])
    assert "<script" not in chart
    assert chart.count("&lt;script&gt;") == 2


class Latin1(io.StringIO):
    encoding = "latin-1"


def test_show_escapes_what_the_encoding_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Latin1()
    monkeypatch.setattr(sys, "stdout", stream)
    show("é € \udc80 …")
    assert stream.getvalue() == "é \\u20ac \\udc80 \\u2026\n"


def test_show_lets_our_colours_through_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    show(f"{RED}red{RESET}\x1b[5m", colours=True)
    show(f"{RED}plain", error=True)
    out, err = capsys.readouterr()
    assert out == "\x1b[31mred\x1b[0m\\x1b[5m\n"
    assert err == "\\x1b[31mplain\n"


@given(texts, st.integers(min_value=2, max_value=30))
def test_cut_text_has_the_width(text: str, width: int) -> None:
    assert width_of(cut(printable(text), width)) == width


@given(st.lists(st.lists(texts, min_size=2, max_size=2), min_size=1, max_size=4))
def test_columns_are_aligned_whatever_is_in_them(rows: list[list[str]]) -> None:
    assert len(table(["a", "b"], rows).split("\n")) == 2 + len(rows)
    cells = fitted([[printable(cell) for cell in row] for row in rows], 20, {0: 5, 1: 5})
    assert len({tuple(map(width_of, row)) for row in cells}) == 1


def test_wide_characters_take_two_columns() -> None:
    assert width_of("日本") == 4
    assert cut("日本語", 4) == "日… "


NAME = "a\x1b]0;pwn\x07\u202e.txt"


@pytest.mark.skipif(sys.platform != "linux", reason="file names of any bytes")
@pytest.mark.parametrize("command", ["compress", "files", "doctor", "run", "bench", "top"])
def test_argument_in_an_error_is_escaped(command: str) -> None:
    """The text is in an error, of the command or of argparse."""
    for argument in (NAME, f"--{NAME}", os.fsdecode(b"\xff\x1b[2J")):
        ended = forkserver.run([sys.executable, "-m", "wsgifast", command, argument], cwd=ROOT)
        assert ended.returncode
        said = ended.stdout + ended.stderr
        assert said.replace("\n", "").isprintable(), said
        # `run` writes a line of JSON, like its server.
        escaped = "\\u001b" if said.startswith("{") else "\\x1b"
        assert escaped in said or "required: DIR" in said or "ADDRESS=''" in said


def test_compress_names_a_file_that_it_leaves_alone(tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.css").write_text("a" * 5000)
    (tmp_path / f"{NAME}.css.gz").symlink_to("elsewhere")
    command = [sys.executable, "-m", "wsgifast", "compress", str(tmp_path), "--codings", "gzip"]
    ended = forkserver.run(command, cwd=ROOT)
    assert r"a\x1b]0;pwn\x07\u202e.txt.css" in ended.stderr
    assert ended.stderr.replace("\n", "").isprintable()
