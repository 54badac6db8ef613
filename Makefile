# Two commands do everything: `make run` and `make test`. `make help` lists the rest.
#
# Everything is installed into .venv and node_modules; stamps in .make record what is up to date. Settings:
#   PYTHON=python3.12   the Python of .venv (3.11 or newer); without it, one that was built for speed, or python3
#   PORT=4437 DATA=data the port and the database of `make run` and `make serve`
#   JOBS=3              the number of tests that run in parallel: one more than there are cores, since tests also wait

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
# Bytecode is cached, whatever the environment says: tests start hundreds of processes, and each would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?=
PORT ?= 4437
DATA ?= data
ROUNDS ?= 3
MINUTES ?= 60
FAULTS ?= 500
JOBS ?= $(shell echo $$(($$(nproc 2>/dev/null || echo 2) + 1)))
WORKERS ?= $(JOBS)

VENV := .venv
BIN := $(VENV)/bin
STAMPS := .make
PIP := $(BIN)/python -m pip --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest
TEST_ENV := PYTHONHASHSEED=0
NODE_PROJECTS := tests/conformance tests/clients examples/editor
PYTHON_SOURCES := src tests $(wildcard bench examples)

say = @printf '\033[1m» %s\033[0m\n' $(1)

.PHONY: help
help:  ## Show this list
	@printf 'Tailrace\n\n'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# -- the product

# The compiled build, if that of the present sources was made; otherwise this is empty, and the sources run.
COMPILED = PYTHONPATH=$$($(BIN)/python tools/compile --path)
# Where it could be made but was not, it is made while the server runs, for the next start.
SHOP = export $(COMPILED); [ "$$PYTHONPATH" ] && missing='' || missing='nice -n 19 $(BIN)/python tools/compile'; \
	exec $(BIN)/python -m examples.shop

.PHONY: setup
setup: $(STAMPS)/server  ## Make .venv with the server in it

.PHONY: setup-spark
setup-spark: $(STAMPS)/spark  ## Make .venv with the server and Spark in it

.PHONY: run
run: $(STAMPS)/server  ## Start a server on port 4437 over ./data, with a shop that writes and a pipeline
	@$(SHOP) run --port $(PORT) --data $(DATA) --install 'make $(STAMPS)/spark' --compile "$$missing"

.PHONY: serve
serve: $(STAMPS)/server  ## Start the server alone, for your own data
	@$(SHOP) serve --port $(PORT) --data $(DATA) --compile "$$missing"

.PHONY: compile
compile: $(STAMPS)/server  ## Compile the server for `make run` and `make serve`; needs a C compiler
	@$(BIN)/python tools/compile --required

.PHONY: wheel
wheel: $(STAMPS)/server  ## Build two wheels into dist: one for every platform, and one that is compiled for this one
	@TAILRACE_COMPILE=0 $(PIP) wheel --quiet --no-deps --wheel-dir dist .
	@TAILRACE_COMPILE=1 $(PIP) wheel --quiet --no-deps --wheel-dir dist .
	@ls dist/*.whl

.PHONY: demo
demo: $(STAMPS)/spark  ## Go through every step of the demo once, in a minute, and check it
	@exec $(BIN)/python -m examples.shop check

.PHONY: editor
editor: $(STAMPS)/server $(STAMPS)/examples/editor/node_modules  ## Start the collaborative editor on port 8080, with a server on port 4437 over ./data
	@cd examples/editor && npm run --silent build
	@$(BIN)/tailrace serve --dev --port $(PORT) --data $(DATA) & server=$$!; trap 'kill $$server 2>/dev/null || true' EXIT; \
		cd examples/editor && node serve.mjs --tailrace http://127.0.0.1:$(PORT)

$(STAMPS)/venv: tools/make-venv
	@mkdir -p $(STAMPS)
	@tools/make-venv '$(PYTHON)' $(VENV)
	@touch $@

# The server needs no Spark: it is up long before 1 GB are installed. Modules are compiled when they are first imported.
$(STAMPS)/requirements: requirements.lock $(STAMPS)/venv
	$(call say,'installing the server (into .venv)')
	@$(PIP) install --no-compile --require-hashes -r requirements.lock
	@touch $@

$(STAMPS)/server: pyproject.toml $(STAMPS)/requirements
	@$(PIP) install --quiet --no-deps --editable .
	@touch $@

$(STAMPS)/spark: requirements-spark.lock $(STAMPS)/server
	$(call say,'installing Spark (into .venv)')
	@$(PIP) install --no-compile --require-hashes -r requirements-spark.lock
	@touch $@

# -- what tests need

$(STAMPS)/dev: requirements-dev.lock $(STAMPS)/server
	$(call say,'installing Spark and the packages of the tests')
	@$(PIP) install --no-compile --require-hashes -r requirements-dev.lock
	@touch $@

.PHONY: node-modules
node-modules: $(NODE_PROJECTS:%=$(STAMPS)/%/node_modules)  ## Install the Node packages of the tests (and Node)

$(STAMPS)/%/node_modules: %/package-lock.json %/package.json
	@tools/ensure-node
	@printf '\033[1m» %s\033[0m\n' 'installing the Node packages of $*'
	@cd $* && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
	@mkdir -p $(@D)
	@touch $@

# Without it, the tests in a browser are skipped.
.PHONY: chromium
chromium:
	@tools/ensure-chromium >/dev/null || [ "$$?" = 69 ]

# Without it, the tests of databases in PostgreSQL are skipped.
.PHONY: postgres
postgres:
	@tools/ensure-postgres >/dev/null || [ "$$?" = 69 ]

# -- tests: everything, then each part

# The parts, the longest first. They run beside each other, JOBS at a time, each in one process: the output of a part is shown when
# it ends, and at the end how long each took. A part that is run by itself, as in `make crash`, is divided among JOBS workers.
# The tests of Spark are two parts, which do not begin together: each has a JVM, and the last part to end decides.
PARTS := spark compiled unit views examples fuzz crash faults several property integration clients console conformance messages types lowest layers
# Directories below tests that `make unit` leaves to other parts, or to `make cluster-test`.
SEPARATE := clients cluster conformance console crash examples faults fuzz integration property spark
TIMES := $(STAMPS)/times
timed = @trap 'echo "$@ $$? $$SECONDS" >> $(TIMES)' EXIT;
part = $(timed) $(TEST_ENV) $(PYTEST) -q
by_file = -n $(WORKERS) --dist loadfile

.PHONY: test
test: $(STAMPS)/dev node-modules chromium postgres lint  ## Run every check and every test
	$(call say,'$(words $(PARTS)) parts$(,) $(JOBS) at a time: $(PARTS)')
	@rm -f $(TIMES); status=0; \
	$(MAKE) --keep-going --jobs=$(JOBS) --output-sync=target WORKERS=0 OFFLINE=skip $(PARTS) || status=$$?; \
	echo "all $$status $$SECONDS" >> $(TIMES); \
	awk '{ printf "%-12s %3d min %2d s%s\n", $$1, $$3 / 60, $$3 % 60, $$2 ? "  failed" : "" }' $(TIMES); \
	[ -e $(STAMPS)/lowest ] || echo 'Not tested: the lowest versions of dependencies; the package registry cannot be reached.'; \
	tools/ensure-chromium --find >/dev/null || echo 'Not tested: the JavaScript client in a browser, and the web console; there is no Chromium, and it could not be installed.'; \
	tools/ensure-postgres --find >/dev/null || echo 'Not tested: databases in PostgreSQL; it is missing, and could not be installed.'; \
	[ -n "$$($(BIN)/python tools/compile --path)" ] || echo 'Not tested: the compiled build; there is no C compiler, or it failed.'; \
	exit $$status
	$(call say,'all tests passed')

# A comma inside a call.
, := ,

.PHONY: lint
lint: $(STAMPS)/dev  ## Check style (ruff)
	$(call say,'style')
	@$(BIN)/ruff check $(PYTHON_SOURCES)
	@$(BIN)/ruff format --check $(PYTHON_SOURCES)

.PHONY: format
format: $(STAMPS)/dev  ## Put the sources into the house format
	@$(BIN)/ruff check --fix $(PYTHON_SOURCES)
	@$(BIN)/ruff format $(PYTHON_SOURCES)

.PHONY: sync
sync: $(STAMPS)/dev  ## Generate the synchronous Python API from the asynchronous one
	@$(BIN)/python tools/make-sync

.PHONY: endpoints
endpoints: $(STAMPS)/dev  ## Generate the endpoint tables of docs/reference from the route table
	@$(BIN)/python tools/make-endpoints

.PHONY: declarations
declarations: node-modules  ## Generate the TypeScript declarations of clients/js from its sources
	@tests/clients/node_modules/.bin/tsc --project clients/js --outDir clients/js

.PHONY: docs
docs: $(STAMPS)/dev  ## Build the documentation site into .site; fails on a broken link
	@$(BIN)/python tools/draw-architecture
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo 'The site is in .site; read it with: $(BIN)/python -m http.server --directory .site 8000'

.PHONY: types
types: $(STAMPS)/dev  ## Check types (mypy --strict)
	$(call say,'types')
	$(timed) $(BIN)/mypy

.PHONY: layers
layers: $(STAMPS)/dev  ## Check that imports point one way (import-linter)
	$(call say,'layers')
	$(timed) $(BIN)/lint-imports --no-logo

.PHONY: unit
unit: $(STAMPS)/dev  ## Run the unit tests, the engine's contract, the migrations and the house rules
	$(call say,'units$(,) the engine$(,) migrations$(,) the house rules')
	$(part) $(by_file) $(SEPARATE:%=--ignore tests/%) tests

# Tests of commands, with every command, result, error and notice replaced by its decoded copy.
MESSAGES_TESTS ?= $(addprefix tests/unit/,bus/test_messages.py streams/test_commands.py tables/test_commands.py topics/test_topics.py sql/test_rows.py)

.PHONY: messages
messages: $(STAMPS)/dev  ## Run tests of commands as if each command came from another process
	$(call say,'commands as messages')
	$(part) -p tests.support.decoded -n $(WORKERS) $(MESSAGES_TESTS)

# The parts that depend most on other packages' interfaces. The AWS SDK and its test server are left out: they need newer
# versions. Without a package registry `make lowest` fails; `make test` reports it and goes on.
LOWEST := .lowest
LOWEST_TESTS ?= tests/unit/scalar tests/unit/sql tests/unit/cold tests/unit/test_secrets.py \
	tests/unit/auth/test_passwords.py tests/unit/auth/test_tokens.py tests/unit/subscriptions/test_signing.py

$(STAMPS)/lowest: pyproject.toml requirements-dev.lock tools/make-lowest $(STAMPS)/dev
	@rm -f $@
	@tools/make-lowest $(VENV) $(LOWEST) && touch $@ || [ "$$?$(OFFLINE)" = 69skip ]

.PHONY: lowest
lowest: $(STAMPS)/lowest  ## Run tests with the lowest versions that pyproject.toml allows; LOWEST_TESTS=tests/unit for more
	$(call say,'the lowest versions that pyproject.toml allows')
	$(timed) if [ -e $(STAMPS)/lowest ]; then \
		$(TEST_ENV) PYTHONPATH=src $(LOWEST)/bin/python -m pytest -q -p no:cacheprovider $(by_file) $(LOWEST_TESTS); \
	else \
		echo 'left out: the package registry cannot be reached'; \
	fi

# On the compiled build `make test` runs the tests that go through compiled modules most; `make test-compiled` runs all of them.
COMPILED_TESTS := tests/conformance tests/engine $(addprefix tests/crash/test_,kills.py power_loss.py tables.py topics.py) \
	$(addprefix tests/property/test_,engine_machine.py groups_machine.py http_machine.py publishing.py runner.py streams_machine.py tables_machine.py writing.py) \
	$(addprefix tests/unit/,http log streams tables topics storage) $(addprefix tests/unit/test_,build.py completion.py database.py runner.py)
NO_COMPILER := 69

.PHONY: compiled
compiled: $(STAMPS)/dev node-modules  ## Run the tests of the hot paths on the compiled build, if there is a C compiler
	$(call say,'the compiled build')
	$(timed) status=0; nice $(BIN)/python tools/compile --required || status=$$?; \
	if [ $$status = $(NO_COMPILER) ]; then \
		echo 'left out: there is no C compiler'; \
	elif [ $$status != 0 ]; then \
		exit $$status; \
	else \
		$(TEST_ENV) TAILRACE_TESTED_BUILD=compiled $(COMPILED) $(PYTEST) -q -p no:cacheprovider $(by_file) $(COMPILED_TESTS); \
	fi

.PHONY: test-compiled
test-compiled:  ## Run all tests on the compiled build, except those of Spark
	@$(MAKE) compiled COMPILED_TESTS='$(addprefix --ignore tests/,cluster spark) tests'

.PHONY: property
property: $(STAMPS)/dev  ## Run the property tests; HYPOTHESIS_PROFILE=deep for long ones
	$(call say,'generated histories$(,) compared with models')
	$(part) -n $(WORKERS) tests/property

.PHONY: crash
crash: $(STAMPS)/dev  ## Kill servers at every failpoint and at random moments
	$(call say,'crashes')
	$(part) -n $(WORKERS) tests/crash

.PHONY: faults
faults: $(STAMPS)/dev postgres  ## Let three servers over PostgreSQL, and PostgreSQL, fail in every way once
	$(call say,'several servers$(,) with every fault once')
	$(part) tests/faults

# Tests that know one server, with four processes in its place, and then with three servers. Those of wording are left out with three:
# where a request has two faults, and one of them is that there is no such table, a server that asks PostgreSQL may report the other one.
SEVERAL_TESTS := $(wildcard tests/clients/dynamodb/test_boto3_*.py) $(addprefix tests/clients/dynamodb/test_,aws_cli.py javascript_sdk.py) \
	tests/integration/test_topics_checklist.py

.PHONY: several
several: $(STAMPS)/dev node-modules postgres  ## Run tests of the AWS SDKs and of topics on four workers, and on three servers in turn
	$(call say,'four workers$(,) and three servers$(,) in the place of one process')
	$(timed) $(TEST_ENV) TAILRACE_TESTED_OPTIONS='--workers 4' $(PYTEST) -q $(by_file) $(SEVERAL_TESTS); \
	if tools/ensure-postgres --find >/dev/null; then \
		$(TEST_ENV) TAILRACE_TESTED_SERVERS=3 $(PYTEST) -q $(by_file) $(filter-out %_wording.py,$(SEVERAL_TESTS)); \
	else \
		echo 'three servers are left out: there is no PostgreSQL'; \
	fi

.PHONY: fuzz
fuzz: $(STAMPS)/dev  ## Throw bad input at a server
	$(call say,'bad input')
	$(part) -n $(WORKERS) tests/fuzz

.PHONY: integration
integration: $(STAMPS)/dev  ## Use whole servers: access, backups, cold history, topics, memory
	$(call say,'whole servers')
	$(part) $(by_file) tests/integration

.PHONY: examples
examples: $(STAMPS)/dev node-modules  ## Run the examples of the documentation
	$(call say,'the examples of the documentation')
	$(part) -n $(WORKERS) tests/examples

.PHONY: conformance
conformance: $(STAMPS)/dev node-modules  ## Run the official Durable Streams conformance suite
	$(call say,'the official conformance suite: own transport$(,) then under uvicorn')
	$(part) tests/conformance

.PHONY: clients
clients: $(STAMPS)/dev node-modules chromium  ## Use the official clients and clients/js against a server
	$(call say,'the official clients$(,) and clients/js')
	$(part) tests/clients

.PHONY: console
console: $(STAMPS)/dev node-modules chromium  ## Use the web console in Chromium: every page, and what users do
	$(call say,'the web console$(,) in Chromium')
	$(part) tests/console

.PHONY: screenshots
screenshots: $(STAMPS)/dev chromium  ## Take screenshots of the web console, for the documentation
	@$(BIN)/python -m tests.console.screenshots docs/assets/console

VIEWS_TESTS := $(wildcard tests/spark/test_view*.py) $(addprefix tests/spark/test_,demo.py exactly_once.py)

.PHONY: spark
spark: $(STAMPS)/dev  ## Run the tests of the pipeline on Spark, but for those of `make views`
	$(call say,'the pipeline$(,) on one Spark session')
	$(part) $(VIEWS_TESTS:%=--ignore %) tests/spark

.PHONY: views
views: $(STAMPS)/dev  ## Run the tests of views on Spark, and those that start Spark by themselves: the demo, and kills
	$(call say,'views$(,) the demo$(,) and exactly once$(,) on Spark')
	$(part) $(VIEWS_TESTS)

# Another version of PySpark than that of .venv, in a directory of its own before it on the path.
SPARK ?= 4.2.1
SPARK_TESTS ?= tests/spark

.spark/%/pyspark: | $(STAMPS)/dev
	$(call say,'installing PySpark $*')
	@rm -rf .spark/$*.tmp && $(PIP) install --quiet --no-deps --no-compile --target .spark/$*.tmp pyspark==$*
	@rm -rf .spark/$* && mv .spark/$*.tmp .spark/$*

.PHONY: spark-version
spark-version: .spark/$(SPARK)/pyspark  ## Run the tests of the pipeline on another PySpark, SPARK=4.2.1 (SPARK_TESTS=tests/spark/test_sink.py for some of them)
	@$(TEST_ENV) PYTHONPATH=.spark/$(SPARK) $(BIN)/python -c 'import pyspark; assert pyspark.__version__ == "$(SPARK)", pyspark.__version__'
	$(call say,'the pipeline on PySpark $(SPARK)')
	@$(TEST_ENV) PYTHONPATH=$(CURDIR)/.spark/$(SPARK) $(PYTEST) -q $(SPARK_TESTS)

.PHONY: history
history: $(STAMPS)/dev  ## Tier and trim a million records, and read them back through every API
	@$(TEST_ENV) RECORDS=1000000 $(PYTEST) -q -s tests/spark/test_history.py

.PHONY: cluster-test
cluster-test: $(STAMPS)/dev  ## Run jobs on a real Spark cluster, and kill drivers, executors and servers
	$(call say,'a Spark master and two workers$(,) with processes killed')
	@$(TEST_ENV) $(PYTEST) -q -s tests/cluster

# -- measurements

.PHONY: bench
bench: $(STAMPS)/dev $(STAMPS)/examples/editor/node_modules  ## Measure beside other servers; BENCH='--quick' for a short look
	@tools/ensure-node
	@tools/ensure-queues
	@tools/ensure-rust-servers
	@$(BIN)/python tools/compile
	@$(COMPILED) $(BIN)/python -m bench $(BENCH)

.PHONY: soak
soak: $(STAMPS)/dev  ## Run the property, fuzz and crash tests ROUNDS times with new examples each time
	@for round in $$(seq $(ROUNDS)); do \
		printf '\033[1m» %s\033[0m\n' "round $$round of $(ROUNDS)"; \
		TAILRACE_SOAK=1 HYPOTHESIS_PROFILE=deep $(PYTEST) -q -n $(JOBS) --timeout 1800 $(wildcard tests/property tests/fuzz tests/crash); \
	done

.PHONY: soak-mixed
soak-mixed: $(STAMPS)/dev  ## Run every API at once with faults for MINUTES=60, and see that nothing grows
	@$(BIN)/python -m tests.soak --minutes $(MINUTES) $(SOAK)

.PHONY: soak-views
soak-views: $(STAMPS)/dev  ## Keep random views of random histories right for MINUTES=60; a difference is printed with its seed
	@$(TEST_ENV) TAILRACE_SOAK=1 $(PYTEST) -q tests/spark/test_view_derivative.py
	@$(TEST_ENV) $(BIN)/python -m tests.spark.soak_views --minutes $(MINUTES) $(SOAK)

.PHONY: cluster-faults
cluster-faults: $(STAMPS)/dev postgres  ## Let several servers fail FAULTS=500 times in MINUTES=60, and check what clients saw
	@$(TEST_ENV) $(BIN)/python -m tests.faults --minutes $(MINUTES) --faults $(FAULTS)

.PHONY: stalls
stalls: $(STAMPS)/dev  ## Fire every heavy request, and print how long the event loop and a ping had to wait
	@$(BIN)/python -m tests.support.stalls

# -- maintenance

COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-header --no-annotate --no-emit-index-url --no-emit-find-links

.PHONY: lock
lock: $(STAMPS)/dev  ## Write the lock files; UPGRADE=1 moves to the newest versions
	$(call say,'requirements.lock$(,) -compile.lock$(,) -postgres.lock$(,) -spark.lock and -dev.lock')
	@$(COMPILE) $(if $(UPGRADE),--upgrade) pyproject.toml --all-extras -o requirements-dev.lock
	@$(COMPILE) $(if $(UPGRADE),--upgrade) pyproject.toml --extra sql --extra cold -c requirements-dev.lock -o requirements.lock
	@printf 'mypy[mypyc]\n' | $(COMPILE) $(if $(UPGRADE),--upgrade) - -c requirements-dev.lock -o requirements-compile.lock
	@printf 'psycopg[binary]\n' | $(COMPILE) $(if $(UPGRADE),--upgrade) - -c requirements-dev.lock -o requirements-postgres.lock
	@$(COMPILE) $(if $(UPGRADE),--upgrade) pyproject.toml --extra sql --extra spark --extra postgres -c requirements-dev.lock -o requirements-spark.lock
	@tools/ensure-node
	@for project in $(NODE_PROJECTS) $(wildcard bench); do \
		printf '\033[1m» %s\033[0m\n' "$$project/package-lock.json"; \
		(cd $$project && npm install --package-lock-only --ignore-scripts --no-audit --no-fund --loglevel=error); \
	done

.PHONY: clean
clean:  ## Remove everything that make created, except ./data
	@rm -rf $(VENV) $(LOWEST) $(STAMPS) .site dist build $(NODE_PROJECTS:%=%/node_modules) bench/node_modules bench/.cargo \
		examples/editor/dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find src tests $(wildcard bench examples) -name __pycache__ -type d -prune -exec rm -rf {} +
