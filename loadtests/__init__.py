"""The load tests: `python -m loadtests KEY` runs rows, each contender x scenario x client.

They stand on :mod:`wsgifast.benchmark`, which `wsgifast bench` runs on anybody's app. `wsgi`,
`asgi`, `slow`, `metrics` and `field_reports` are the tables whose figures the documentation gives
(`docs.benchmarks` takes them there), `leaks` and `replaced` those that find faults;
`*_app` is what is served, `servers` the servers that are not ours, `clients` and `uploads` who
asks.
"""
