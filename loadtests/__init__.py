"""The load tests: `python -m loadtests KEY` runs rows, each contender x scenario x client.

They stand on :mod:`wsgifast.commands.bench`, which `wsgifast bench` runs on anybody's app. `wsgi`,
`asgi`, `slow`, `metrics` and `field_reports` are the tables whose figures the documentation gives,
by `docs.benchmarks`; `leaks`, `replaced` and `applications` find faults. `*_app` and `calls` are
measured, `servers` are those that are not ours, `clients` and `uploads` ask.
"""
