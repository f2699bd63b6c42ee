"""The load tests: `python -m loadtests` runs those whose figures the README gives.

`bench` is what everything stands on, and what a user runs on an app of their own. Each module of
tables (`worker`, `asgi`, ...) says which contenders stand beside each other; `app` and `asgi_app`
are what they serve, `peers` the servers that are not ours.
"""
