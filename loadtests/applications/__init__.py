"""Compare the responses of released applications with and without wsgifast.

Run `python -m loadtests.applications [NAME ...]`. `catalogue` lists the applications. `environment`
installs and starts them. `exchanges` sends the requests and compares the responses.
"""
