# Everything a person types. `make` alone lists it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
FIGURES := $(VENV)/.figures
AUDIT := .venv-audit
FLINK := .flink
TESTS ?=
WORKERS ?= auto
SEEDS ?= 30
LIVES ?= 10
SEED ?=
QUICK ?=
TEST_SECONDS ?= 480
ALL ?=
SAMPLE_SECONDS ?= 840
REF ?=
OWN ?=
FIGURE ?=
KEEP ?=
RESUME ?=

# Tests start hundreds of processes that import the same modules: compiled once is enough.
unexport PYTHONDONTWRITEBYTECODE

PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(if $(SEED),--seed $(SEED))

.DEFAULT_GOAL := help
.PHONY: help demo test test-unit coverage test-kubernetes test-sample test-all lengths console console-dev chaos availability mutants lint format bench bench-object-store bench-nexmark bench-nexmark-flink bench-kubernetes bench-compare figures scale pictures screenshots kubernetes-tools lock audit release clean

help: ## List what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY) ## A real streaming application: epochs, look-ups, a killed driver, a fork, the proof (about two minutes; KEEP=1: until Ctrl-C)
	@$(BIN)/python -m examples.flights.demo $(if $(KEEP),--keep)

test: $(READY) ## Tests of what changed and a sample of the others, eight minutes (TESTS=path for some, ALL=1 for all)
	@$(PYTEST) -m "not long" $(if $(ALL)$(TESTS),,--change-seconds $(TEST_SECONDS)) $(TESTS)
	@echo "Not included: tests marked long (whole stories, the demo, repetitions); 'make test-all' runs these too."

test-unit: $(READY) ## Tests without processes and without a Spark session, in less than two minutes
	@$(PYTEST) tests/unit -m "not long" $(TESTS)

# Each worker has a cluster of its own, which takes two cores.
test-kubernetes: WORKERS = $(shell cores=$$(nproc); echo $$((cores > 3 ? cores / 2 : 1)))
test-kubernetes: $(READY) ## The chart installed on a real Kubernetes API, every kind of pod killed, upgraded (after make kubernetes-tools)
	@tools/in-own-network $(PYTEST) tests/kubernetes $(TESTS)

test-sample: $(READY) ## A sample of what is marked long, a quarter of an hour at most (SEED=number repeats one)
	@$(PYTEST) -m long --sample-seconds $(SAMPLE_SECONDS) $(TESTS)

test-all: $(READY) ## All tests, also those that take minutes each, and more examples of each property
	@$(PYTEST) --hypothesis-profile thorough $(TESTS)

coverage: $(READY) ## Coverage of the usual tests, by package, and tests/executed.json, by which make test selects
	@rm -rf .coverage && mkdir .coverage
	-@EPOCHAL_TEST_FILE=none $(BIN)/python -m coverage run -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not long" -q
	@$(BIN)/python -m tests.kit.recording

lengths: $(READY) ## All tests, and how long they took into tests/lengths.json (on a quiet machine)
	@$(PYTEST) -n logical --hypothesis-profile thorough --write-lengths

chaos: $(READY) ## Histories of an application with four sinks, killed at random points, its servers too (SEEDS=30 LIVES=10 STORE=s3 CLUSTER=1)
	@$(BIN)/python -m tests.servers.chaos --seeds $(SEEDS) --lives $(LIVES) --workers $(patsubst auto,2,$(WORKERS)) $(if $(STORE),--store $(STORE)) $(if $(CLUSTER),--cluster)

availability: $(READY) ## Histories of three control planes, killed, paused and cut off under load (SEEDS=30)
	@$(BIN)/python -m tests.service.availability --seeds $(SEEDS)

mutants: $(READY) ## Deliberately wrong protocols, each of which the tests have to notice (a run of pytest for each)
	@$(BIN)/python -m tests.mutants

lint: $(READY) ## Style, formatting, types, import contracts, phrases
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.phrases

format: $(READY) ## Put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(FIGURES) ## Measure, and write benchmarks/RESULTS.md (about three quarters of an hour; MEASURES=tables: some)
	@$(BIN)/python -m benchmarks.run $(if $(MEASURES),$(MEASURES) --record)
	@$(if $(MEASURES),,$(BIN)/python -m benchmarks.object_store)

bench-object-store: $(READY) ## Requests and waits of an application with its snapshots in S3, into benchmarks/RESULTS.md (a quarter of an hour)
	@$(BIN)/python -m benchmarks.object_store

bench-nexmark: $(FIGURES) ## Nexmark's queries beside Structured Streaming, into benchmarks/RESULTS.md (two to three hours; RESUME=FILE: go on)
	@$(BIN)/python -m benchmarks.nexmark $(if $(RESUME),--resume $(RESUME))

bench-nexmark-flink: $(FIGURES) $(FLINK)/.ready ## The same queries beside Flink, from JSON files, into benchmarks/RESULTS.md (three to four hours; RESUME=FILE: go on)
	@$(BIN)/python -m benchmarks.flink $(if $(RESUME),--resume $(RESUME))

bench-kubernetes: $(READY) ## How soon drivers in pods commit, into benchmarks/RESULTS.md (eight minutes, after kubernetes-tools)
	@tools/in-own-network $(BIN)/python -m benchmarks.kubernetes --spares

bench-compare: $(READY) ## Is this checkout slower than another commit? Both in alternating rounds, about ten minutes (REF=main~5; OWN=1: REF with its own benchmarks)
	@$(BIN)/python -m benchmarks.compare $(REF) $(if $(OWN),--own-benchmarks)

figures: $(FIGURES) ## Charts as in the SDG paper's section 6, into benchmarks/RESULTS.md (FIGURE=recovery: one; QUICK=1: only tried)
	@$(BIN)/python -m benchmarks.figures $(FIGURE) $(if $(QUICK),--quick)

scale: $(FIGURES) ## What grows with keys, operators, subtasks, history, applications: docs/operations/scale.md's numbers (FIGURE=keys: one)
	@$(BIN)/python -m benchmarks.scale $(FIGURE) $(if $(QUICK),--quick)

pictures: $(FIGURES) ## Draw the pictures of docs/reference/event-time.md again
	@$(BIN)/python tools/draw_time.py

screenshots: $(READY) ## Pictures of every page of the console in FOLDER (build/screenshots), and those of README and docs (needs Chromium)
	@$(BIN)/python -m tools.screenshots --docs $(or $(FOLDER),build/screenshots)

kubernetes-tools: $(READY) ## The programs of Kubernetes that tests start, built once into the user's cache (6 to 16 minutes; needs Go)
	@$(BIN)/python -m tests.kit.kubernetes.programs

lock: $(READY) ## Compile requirements.lock from pyproject.toml (needs uv)
	uv pip compile pyproject.toml --extra development --universal --python-version 3.11 --generate-hashes --upgrade \
		--no-header --no-annotate --no-emit-index-url --no-emit-find-links --output-file requirements.lock
	uv pip compile pyproject.toml --extra figures --constraints requirements.lock --universal --python-version 3.11 \
		--generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
		--output-file requirements-figures.lock

release: $(READY) ## The wheel of this version into dist/, and stored for the test of rolling upgrades (CONTRIBUTING.md)
	@$(BIN)/python -m tests.service.availability.released

# pip-audit has an environment of its own: its requirements are not those of the project.
audit: ## Known vulnerabilities of the locked packages (needs PyPI's database, or OSV's with AUDIT_SERVICE=osv)
	@test -x $(AUDIT)/bin/pip-audit || { $(PYTHON) -m venv $(AUDIT) && \
		$(AUDIT)/bin/python -m pip install --quiet --disable-pip-version-check pip-audit==2.10.1; }
	@$(AUDIT)/bin/python -m tools.audit $(AUDIT)/bin/pip-audit requirements.lock requirements-figures.lock

clean: ## Remove the environment and everything that was built or cached
	rm -rf $(VENV) $(AUDIT) $(FLINK) build dist .demo .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis spark-warehouse metastore_db console/node_modules
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# PyFlink requires other versions of PyArrow and pandas than the project, so that it has an environment of its own.
$(FLINK)/.ready: benchmarks/flink/requirements.lock
	@$(PYTHON) -c "import sys; sys.exit(None if (3, 9) <= sys.version_info[:2] <= (3, 12) else 'PyFlink needs Python 3.9 to 3.12: PYTHON=python3.12')"
	@test -x $(FLINK)/bin/python || $(PYTHON) -m venv $(FLINK)
	@echo "Installing PyFlink into $(FLINK): 850 MB, some minutes, only this once"
	@$(FLINK)/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/flink/requirements.lock
	@touch $@

# Node and npm are needed only to change the console: its bundle is committed.
console/node_modules/.package-lock.json: console/package.json console/package-lock.json
	@cd console && npm ci --silent

console: $(READY) console/node_modules/.package-lock.json ## The console's types, checks and bundle into service/console_files (needs Node 20)
	@mkdir -p build
	@$(BIN)/python console/tools/openapi.py build/openapi.json
	@cd console && npm run --silent types && npm run --silent check && npm run --silent test && npm run --silent build

console-dev: console/node_modules/.package-lock.json ## The console, rebuilt after each change, of a control plane (EPOCHAL_URL=http://127.0.0.1:8000)
	@cd console && npm run --silent dev

# Every package at the version and with the hash that the lock file names; then the checkout itself.
$(READY): requirements.lock pyproject.toml tools/check-machine
	@tools/check-machine $(PYTHON)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing what requirements.lock names into $(VENV): two to three minutes, only this once"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@echo "Archiving Spark's classes, so that every later start takes half the time (half a minute)"
	@$(BIN)/python -m epochal.engine.class_archive || true
	@touch $@

# Only benchmarks and the pictures of the documentation draw.
$(FIGURES): $(READY) requirements-figures.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-figures.lock
	@touch $@
