# Everything runs from one virtual environment in this checkout, made on first use.
#   make demo      compare gunicorn and uvicorn with and without wsgifast, under Locust
#   make test      run every test
#   make docs      build the documentation
#   make benchmarks  measure its figures
#   make release   build wheel and source archive, and check them
#   make test-release  install and test them as their users do
#   make test-newest   run every test on the newest releases of gunicorn, uvicorn and others
#   make servers   install what tests and load tests talk to, for Debian and Ubuntu
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
DOCS_READY := $(VENV)/.docs-ready
RELEASE_READY := $(VENV)/.release-ready
# What FastWorker and `wsgifast files` say to a gunicorn that is too old is tested with one.
UNSUPPORTED_GUNICORN := $(VENV)/unsupported-gunicorn
# Those that are supported.
PYTHONS := 3.11 3.12 3.13 3.14 3.15
# Runners of the tests: thrice the cores, as tests of live servers wait longer than they compute.
JOBS   ?= $(shell $(PYTHON) -c 'import os; print(3 * len(os.sched_getaffinity(0)))' 2>/dev/null || echo 4)

# pytest rewrites and Python compiles the tests in every process, unless they may keep the outcome.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo benchmarks field-reports servers test test-long test-all \
  test-oldest test-oldest-gunicorn \
  test-oldest-uvicorn test-oldest-django test-newest test-extras test-django test-peers test-release lint format coverage docs docs-links release clean
.DEFAULT_GOAL := test

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "wsgifast needs Python 3.11 or newer; name one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "Setting up $(VENV) with $$($(PYTHON) --version) (once; a minute or two) ..."
	@$(PYTHON) -m venv $(VENV) \
	  || { echo "Python's venv module is missing: apt-get install python3-venv (Debian, Ubuntu)"; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --group parser 2>$(VENV)/parser.log \
	  || echo "Without gunicorn's C parser, which is optional and needs a compiler (make servers installs one)."
	@touch $@
	@echo "$(VENV) is ready."

$(UNSUPPORTED_GUNICORN): $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
	  --target $@ gunicorn==23.0.0
	@touch $@

demo: $(READY)
	@$(BIN)/python -m loadtests.demo

# Every figure of the documentation, measured and published: an hour and a half on a quiet machine.
# ARGS='worker. --profile release' measures less, and leaves the other figures as they are.
benchmarks: $(READY)
	@$(BIN)/python -m loadtests $(or $(ARGS),all --profile release); status=$$?; \
	  $(BIN)/python -m docs.benchmarks.publish && exit $$status

# The five field reports measured again; PROFILE=release for as many messages and bytes as then.
field-reports: $(READY)
	@$(BIN)/python -m loadtests $(or $(ARGS),field.) --page field-reports --profile $(or $(PROFILE),quick)

# nginx, uWSGI, Dovecot, Exim, curl, wrk and others by apt-get, for root or by sudo, and two tools by Go, where
# it is installed; tests without theirs are skipped.
servers:
	@$(PYTHON) tests/support/programs.py

# In CI a test that fails is run once more, and named in the summary. A release has RERUNS=0.
RERUNS ?= $(if $(CI),1,0)
test: $(READY) $(UNSUPPORTED_GUNICORN)
	@echo "Running the tests on $$($(BIN)/python --version), $(JOBS) at a time ..."
	@$(BIN)/python -m pytest -n $(JOBS) --reruns=$(RERUNS) --rerun-show-tracebacks $(ARGS)

# Random testing twenty times as long.
test-long:
	@WSGIFAST_TEST_LONG=1 $(MAKE) --no-print-directory test ARGS='--timeout=1800 $(ARGS)'

# Every supported Python that this machine has, each in an environment of its own.
test-all:
	@missing=; for version in $(PYTHONS); do \
	  python=$$(sh tests/support/find_python.sh $$version) \
	    || { missing="$$missing $$version"; continue; }; \
	  $(MAKE) --no-print-directory test PYTHON=$$python VENV=.venv-$$version || exit 1; \
	done; \
	[ -z "$$missing" ] || echo "Not tested, as not installed here (pyenv install N):$$missing"

# FastWorker on the oldest gunicorn that it supports, asgifast on the oldest uvicorn, both on the
# oldest Django.
test-oldest: test-oldest-gunicorn test-oldest-uvicorn test-oldest-django

test-oldest-gunicorn: $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
	  --target $(VENV)/oldest-gunicorn gunicorn==$$($(BIN)/python -c \
	    'from wsgifast.hosts import GUNICORN; print(GUNICORN.oldest)')
	@PYTHONPATH=$(abspath $(VENV))/oldest-gunicorn $(BIN)/python -m pytest -n $(JOBS) tests/workers $(ARGS)

test-oldest-uvicorn: $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
	  --target $(VENV)/oldest-uvicorn uvicorn==$$($(BIN)/python -c \
	    'from wsgifast.hosts import UVICORN; print(UVICORN.oldest)')
	@PYTHONPATH=$(abspath $(VENV))/oldest-uvicorn $(BIN)/python -m pytest -n $(JOBS) tests/asgi $(ARGS)

test-oldest-django: $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
	  --target $(VENV)/oldest-django 'django==4.2.*'
	@PYTHONPATH=$(abspath $(VENV))/oldest-django $(BIN)/python -m pytest -n $(JOBS) \
	  tests/django tests/bodies/test_wrappers_django.py tests/mail/test_django.py $(ARGS)

# On the newest release of each package that an extra asks for, pre-releases included, or on what NEWEST
# names: make test-newest NEWEST='git+https://github.com/benoitc/gunicorn'
test-newest: $(READY) $(UNSUPPORTED_GUNICORN)
	@rm -rf $(VENV)/newest
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --pre --upgrade \
	  --target $(VENV)/newest $(or $(NEWEST),$$($(BIN)/python -m tests.support.extras packages))
	@$(BIN)/python -m pip list --path $(VENV)/newest --disable-pip-version-check
	@PYTHONPATH=$(abspath $(VENV))/newest $(MAKE) --no-print-directory test ARGS='$(ARGS)'

# Every extra from wheels alone, so that nobody needs a compiler.
test-extras: $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --dry-run --ignore-installed \
	  --only-binary :all: ".[$$($(BIN)/python -m tests.support.extras)]"

# Django's own tests of what wsgifast.django takes the place of; pip downloads them.
test-django: $(READY)
	@$(BIN)/python -m tests.django.own_suites $(ARGS)

# Tests of uvicorn, Starlette and gunicorn, with our classes in place of theirs; pip downloads them.
test-peers: $(READY)
	@$(BIN)/python -m tests.peers.own_suites $(ARGS)

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache --no-logo

format: $(READY)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

coverage: $(READY) $(UNSUPPORTED_GUNICORN)
	@rm -f .coverage .coverage.*
	@$(BIN)/python -m coverage run -m pytest -n $(JOBS) $(ARGS)
	@$(BIN)/python -m coverage combine --quiet
	@$(BIN)/python -m coverage report

# The documentation in build/site: the pages that are made of the code first, then all of them; what
# Sphinx warns of (a reference, an anchor or a page that is not there) is an error.
docs: $(DOCS_READY)
	@$(BIN)/python -m docs.pages
	@$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --fresh-env \
	  -b html -d build/doctrees docs build/site
	@echo "build/site/index.html"

$(DOCS_READY): $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --group docs
	@touch $@

# The links of the documentation that lead elsewhere.
docs-links: $(DOCS_READY)
	@$(BIN)/python -m sphinx --quiet -b linkcheck -d build/doctrees docs build/links

$(RELEASE_READY): $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --group release
	@touch $@

# Wheel, source archive and bill of materials in dist/, checked.
release: $(RELEASE_READY)
	@rm -rf dist build/sbom
	@$(BIN)/python -m hatchling build -d dist
	@$(BIN)/python -m twine check --strict dist/*.whl dist/*.tar.gz
	@$(BIN)/python -m venv --without-pip build/sbom
	@$(BIN)/python -m pip --python build/sbom/bin/python install --quiet --no-index dist/*.whl
	@$(BIN)/cyclonedx-py environment build/sbom/bin/python --pyproject pyproject.toml --mc-type library \
	  --output-reproducible --output-file dist/wsgifast.cdx.json
	@ls dist

# The release as its users have it: the wheel in an empty environment of each supported Python that this
# machine has, with every command, and the source archive's tests, in a folder of its own. None is run again.
test-release: release
	@pythons=; for version in $(PYTHONS); do \
	  pythons="$$pythons $$(sh tests/support/find_python.sh $$version)"; done; \
	WSGIFAST_TEST_WHEEL=$$(echo $(CURDIR)/dist/*.whl) WSGIFAST_TEST_PYTHONS="$$pythons" \
	  $(BIN)/python -m pytest -n 0 tests/test_wheel.py
	@rm -rf build/source && mkdir -p build/source && tar -xzf dist/*.tar.gz -C build/source
	@$(MAKE) --no-print-directory -C build/source/* test RERUNS=0 ARGS='$(ARGS)'

clean:
	rm -rf .venv .venv-* .mypy_cache .pytest_cache .ruff_cache .hypothesis reports build dist
