"""Compares servers in tables of rows, on the parts of `wsgifast bench`.

Contenders run in turn (A B A B ...), because absolute figures differ from minute to minute. The
report has the median of each contender, and the ratio of consecutive runs with its spread::

    contenders = (
        Contender("gthread", gunicorn("module:app"), "/small"),
        Contender("sync", gunicorn("module:app", worker_class="sync"), "/small"),
    )
    rows = [Row("my.small", "1 KiB", contenders, Locust().client(users=8))]
    results = list(run(Table("my", "My workers", rows), Profile(seconds=1.0)))
    print(results_text(results))
"""
