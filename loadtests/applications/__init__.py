"""Released applications, as they are and wrapped: whether anything is worse in one of them.

`python -m loadtests.applications [NAME ...]`: `catalogue` has the applications, `environment`
installs and starts them, `exchanges` asks them and compares what comes.
"""
