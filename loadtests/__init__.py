"""Run the load tests.

`python -m loadtests KEY` runs rows. A row measures several contenders with the same requests, and a
table contains related rows. A contender is, for example, a server, or an app in WSGIFast.

- `harness` runs the rows. It uses parts of :mod:`wsgifast.commands.bench`.
- `wsgi`, `asgi`, `slow`, `metrics` and `field_reports` define the tables for the documentation
  (`docs.benchmarks`).
- `leaks`, `replaced` and `applications` find faults of servers.
- `*_app` and `calls` contain the apps and the calls that the rows measure.
- `servers` starts the servers of other projects.
- `clients` and `uploads` send the requests.
"""
