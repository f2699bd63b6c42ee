"""The load tests. `python -m loadtests KEY` runs rows, which compare several servers.

- `harness` runs the rows, with the parts of :mod:`wsgifast.commands.bench`.
- `wsgi`, `asgi`, `slow`, `metrics` and `field_reports` contain the tables for the documentation
  (`docs.benchmarks`).
- `leaks`, `replaced` and `applications` find faults.
- `*_app` and `calls` contain the measured apps and calls.
- `servers` contains the servers of other projects.
- `clients` and `uploads` send the requests.
"""
