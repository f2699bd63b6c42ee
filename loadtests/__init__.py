"""The load tests: `python -m loadtests KEY` runs rows, each contender x scenario x client.

`harness` runs them, on the parts of :mod:`wsgifast.commands.bench`. `wsgi`, `asgi`,
`slow`, `metrics` and `field_reports` are the tables with the figures of the documentation
(`docs.benchmarks`). `leaks`, `replaced` and `applications` find faults. `*_app` and `calls` are
measured. `servers` are those that are not ours. `clients` and `uploads` send the requests.
"""
