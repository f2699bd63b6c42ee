"""The load tests: `python -m loadtests` runs those whose figures the documentation gives.

They stand on :mod:`wsgifast.benchmark`, which `wsgifast bench` runs on anybody's app. Each module
of tables (`worker`, `asgi`, ...) says which contenders stand beside each other; `app` and
`asgi_app` are what they serve, `peers` the servers that are not ours.
"""
