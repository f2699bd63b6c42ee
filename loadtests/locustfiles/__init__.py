"""Scenarios for Locust itself, web UI included: `locust -f loadtests/locustfiles/bodies.py`.

`python -m loadtests.serving` serves the bundled app for them, raw on port 8001 and wrapped on 8002;
`-H http://127.0.0.1:8002` chooses the wrapped one. Locust is one Python process: past some 2 GB/s,
or a few thousand small answers a second, the client is what is measured; `--processes -1` uses
every core, `--master` and `--worker` other machines.
"""
