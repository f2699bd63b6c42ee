"""Runs with invented figures."""

from __future__ import annotations

from collections.abc import Mapping

from loadtests.harness.results import Result
from loadtests.harness.runner import run
from loadtests.harness.tables import Client, Contender, Profile, Row, Table, Task
from wsgifast.commands.bench.loads import Load


def client(*rates: float, failures: int = 0, facts: dict[str, float] | None = None) -> Client:
    """Return these figures, one at each call: requests in one second, of 1,000 bytes each."""
    left = list(rates)

    def run(task: Task) -> Load:
        requests = int(left.pop(0))
        times = {50: 1.0, 95: 2.0, 99: 3.0} if requests else {}
        errors = {"status 500": failures} if failures else {}
        return Load(requests, failures, requests * 1000, 1.0, times, errors, 0.9, facts or {})

    return run


def results(*contenders: Contender, rounds: int = 3, ours: str | None = None) -> Result:
    row = Row("a.key", "a <title>", contenders, client(), ours=ours)
    (result,) = run(Table("test", "A test", [row]), Profile(1.0, rounds))
    return result


def compared(
    rates: Mapping[str, tuple[float, ...]], *, ours: str | None = None, failures: int = 0
) -> Result:
    """A result of contenders by their names.

    :param failures: the failures of the last contender, in each round.
    """
    last = list(rates)[-1]
    clients = {n: client(*r, failures=failures * (n == last)) for n, r in rates.items()}
    contenders = (Contender(name, client=each) for name, each in clients.items())
    return results(*contenders, rounds=len(rates[last]), ours=ours)
