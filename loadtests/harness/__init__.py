"""Run the comparisons of the load tests, with the modules of `wsgifast bench`.

A table consists of rows. A row compares contenders, which are servers or clients. Their runs
alternate (A B A B ...), because absolute figures differ from minute to minute. The report has the
median of each contender, and the median and the spread of the ratios of consecutive runs::

    contenders = (
        Contender("gthread", gunicorn("module:app"), "/small"),
        Contender("sync", gunicorn("module:app", worker_class="sync"), "/small"),
    )
    rows = [Row("my.small", "1 KiB", contenders, Locust().client(users=8))]
    results = list(run(Table("my", "My workers", rows), Profile(seconds=1.0)))
    print(results_text(results))
"""
