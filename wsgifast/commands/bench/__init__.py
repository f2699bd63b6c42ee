"""Benchmarks: contenders, on real servers, are loaded in turn and compared by their ratios.

`wsgifast bench` runs it on an app of yours; the project's own load tests are tables for it too.

Absolute figures differ from machine to machine and from minute to minute; so contenders run in turn
(A B A B ...), and what is reported is the median of each and the ratio of neighbours, with its
spread. A whole benchmark is a table::

    contenders = (
        Contender("gthread", gunicorn("module:app"), "/small"),
        Contender("sync", gunicorn("module:app", worker_class="sync"), "/small"),
    )
    rows = [Row("my.small", "1 KiB", contenders, Locust().client(users=8))]
    results = list(run(Table("my", "My workers", rows), Profile(seconds=1.0)))
    print(results_text(results))

It needs the extra `bench`: importing the package does not, its modules do.
"""
