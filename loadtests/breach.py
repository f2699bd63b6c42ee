"""Count the requests that a BREACH attack needs, with and without padding.

    python -m loadtests.breach

A page contains a secret, and text from the client, such as a search term. An attacker makes a
victim's browser request the page with guesses, and sees the lengths of the responses. Of the
sixteen guesses for the next digit, the right one repeats one more digit of the page, and compresses
best. So the attacker finds the secret digit by digit.

Each guess is sent in two forms: with its last digit before characters that are not in the page, and
after them. The difference of the two lengths does not depend on Huffman codes. With padding, each
form is sent several times, and the mean or the minimum of the lengths is used. If two guesses have
the same length, the attack counts as failed. A real attacker would then try other forms.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from statistics import fmean

from wsgifast.compression.codings import MAX_PADDING_BYTES, available_codings, compressor

_DIGITS = "0123456789abcdef"
_FILL = [f"<p>The quick brown fox jumps over the lazy dog, number {n}.</p>\n" for n in range(40)]


def page(secret: str, term: str) -> bytes:
    fill = "".join(_FILL)
    return (
        f"<html><h1>Results for {term}</h1>{fill}"
        f'<input type=hidden name=csrf value="csrf={secret}">{fill[::3]}</html>'
    ).encode()


def success(
    coding: str,
    repeats: int,
    estimate: Callable[[Sequence[int]], float],
    trials: int,
    *,
    padding: bool,
) -> float:
    """Return the share of digits that the attack finds."""
    random_ = random.Random(1)
    found = 0
    for _ in range(trials):
        secret = "".join(random_.choices(_DIGITS, k=32))
        known = random_.randrange(4, 28)
        scores = {}
        for digit in _DIGITS:
            guess = f"csrf={secret[:known]}"
            score = 0.0
            for sign, term in ((1, f"{guess}{digit}~^"), (-1, f"{guess}~^{digit}")):
                content = page(secret, term)
                size = len(compressor(coding, size=len(content)).whole(content))
                sizes = [
                    size + (random_.randint(0, MAX_PADDING_BYTES) if padding else 0)
                    for _ in range(repeats)
                ]
                score += sign * estimate(sizes)
            scores[digit] = score
        lowest = min(scores.values())
        best = [digit for digit, score in scores.items() if score == lowest]
        found += best == [secret[known]]
    return found / trials


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtests.breach", description=__doc__)
    parser.add_argument("--trials", type=int, default=100)
    trials = parser.parse_args().trials
    print("| coding | padding | of each length | requests for a digit | digits found |")
    print("|---|---|---|---|---|")
    for coding in available_codings():
        rows: Sequence[tuple[bool, str, Callable[[Sequence[int]], float], int]] = (
            (False, "one", min, 1),
            (True, "one", min, 1),
            *((True, "the least", min, n) for n in (10, 100, 300, 1000)),
            *((True, "the mean", fmean, n) for n in (100, 1000, 10_000)),
        )
        for padding, name, estimate, repeats in rows:
            share = success(coding, repeats, estimate, trials, padding=padding)
            shown = "yes" if padding else "no"
            print(f"| {coding} | {shown} | {name} | {2 * len(_DIGITS) * repeats:,} | {share:.0%} |")


if __name__ == "__main__":
    main()
