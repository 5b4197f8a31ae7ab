# Everything a newcomer needs: `make run` and `make test`. `make help` lists the rest.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
RUNS   := $(VENV)/.runs
ENVIRONMENT := $(PYTHON) deploy/environment.py $(VENV)
CLASSES := $(VENV)/spark-classes.jsa
SUITE  ?= hot-path
STEPS  ?= 1000000000
# For two processors: tests wait a third of their time, those on servers half of it.
JOBS   ?= 3
SERVER_JOBS ?= 4
# Tests start hundreds of interpreters; none shall compile again what another has compiled.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX ?= $(CURDIR)/$(VENV)/bytecode

.DEFAULT_GOAL := help
.PHONY: help env run test check format lint types imports unit classes integration simulate soak \
        crash faults chaos score deep nightly bench docs site wheel sbom lock clean

help:  ## List what can be made.
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

env: $(READY)  ## Create the environment from the hash-locked requirements.

# A newcomer's first run needs no tool of developers.
$(RUNS): requirements/examples.lock pyproject.toml
	@$(ENVIRONMENT) requirements/examples.lock
	@touch $(RUNS)

$(READY): requirements/dev.lock pyproject.toml
	@$(ENVIRONMENT) requirements/dev.lock
	@touch $(RUNS) $(READY)

run: $(RUNS)  ## The main job: real flights through bolts into a Delta table by Spark, or make run SINK=delta.
	@$(BIN)/python -m examples.flights $(if $(SINK),--sink $(SINK))

# What uses one processor each comes side by side.
BESIDE := $(MAKE) --no-print-directory --jobs=2

test: $(READY)  ## Every test: those without a server, then those on real ones.
	@$(BESIDE) lint types imports classes
	@$(MAKE) --no-print-directory unit
	@$(MAKE) --no-print-directory integration

check: $(READY)  ## The fast tier: no server is started, no test marked slow is run.
	@$(BESIDE) lint types imports
	@$(MAKE) --no-print-directory unit UNIT="$(UNIT) and not slow"

format: $(READY)  ## Format the code.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

imports: $(READY)
	$(BIN)/lint-imports --no-logo --no-cache

UNIT := not integration and not acceptance and not nightly and not faults and not deep

unit: $(READY)
	$(BIN)/pytest -m "$(UNIT)" \
	  --ignore=tests/acceptance --ignore=tests/integration --ignore=tests/deep -n $(JOBS) --dist worksteal

classes: $(CLASSES)

$(CLASSES): $(READY)
	@echo "making archives of the servers' classes (a minute)"
	-@$(BIN)/python -m tests.spark_classes $@  # the tests do without, only slower

integration: $(CLASSES)  ## The tests on a real Kafka, ZooKeeper, PostgreSQL and Spark.
	$(BIN)/pytest tests/acceptance tests/contract tests/integration tests/typing -m "(integration or acceptance) and not nightly and not faults and not deep" \
	  -n $(SERVER_JOBS) --dist loadfile --no-loadscope-reorder

simulate: $(READY)  ## Simulate a million steps, and see that every deliberate fault is found.
	@$(BIN)/python -m tests.simulation $(if $(SIMULATE_STEPS),--steps $(SIMULATE_STEPS))

soak: $(READY)  ## Simulate a thousand times as many: make soak STEPS=1000000000.
	@$(BIN)/python -m tests.simulation --no-mutants --steps $(STEPS)

FAULTS = @$(BIN)/python -m tests.faults $(if $(MINUTES),--minutes $(MINUTES)) $(if $(CASES),--cases $(CASES))

crash: $(READY)  ## Kill the process everywhere, for every sink: make crash CASES=delta,topic:any.
	$(FAULTS) --suite sinks $(if $(CRASH_SEED),--seed $(CRASH_SEED))

faults: $(READY)  ## Hit every crash point, play the fault matrix: make faults CASES=C07,K02.
	$(FAULTS) $(if $(REPORT),--report $(REPORT)) $(if $(FAULTS_SEED),--seed $(FAULTS_SEED))

chaos: $(READY)  ## Replicas come and go at random: make chaos MINUTES=10; a steady hour: CASES=soak MINUTES=60.
	$(FAULTS) --suite chaos $(if $(CHAOS_SEED),--seed $(CHAOS_SEED))

score: $(READY)  ## Build kube-score, and see what it says of the Helm chart.
	@deploy/tools.sh score
	$(BIN)/pytest -q -m deep tests/deploy/test_chart_score.py

deep: $(READY)  ## What operators are given, on a real Kubernetes, engine, Prometheus (as root; 25 minutes).
	@deploy/tools.sh score chart cluster engine azurite
	-@deploy/image.sh compose  # the tests that need it say so
	$(BIN)/pytest -m deep

nightly: $(READY)  ## What takes long or needs more than Python, Java, make: make nightly PARTS=crash,chaos.
	@$(BIN)/python -m tests.nightly $(if $(PARTS),--parts $(PARTS))

bench: $(READY)  ## Measure (docs/benchmarks.md): make bench SUITE=hot-path, or SUITE=all.
	@$(BIN)/python -m benchmarks $(SUITE) $(if $(REPORT),--report $(REPORT))

docs: $(READY)  ## Write the generated parts of docs/ anew.
	@$(BIN)/python -m deploy.reference
	@$(BIN)/python -m deploy.chart

site: $(READY)  ## Build the documentation site into site/, with every warning an error.
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

wheel: $(READY)  ## Build the wheel into dist/, and try a new project with it in an empty environment.
	@deploy/wheel.sh

sbom: $(READY)  ## Write what the images are made of to sbom.cdx.json, sbom-slim.cdx.json (CycloneDX 1.6).
	$(BIN)/python -m deploy.sbom sbom.cdx.json
	$(BIN)/python -m deploy.sbom --slim sbom-slim.cdx.json

LOCK := uv pip compile --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --quiet

lock: $(READY)  ## Lock the requirements anew (needs uv on PATH).
	$(LOCK) --extra all --extra dev --extra examples --extra schema-registry --extra tracing \
	  -o requirements/dev.lock pyproject.toml
	$(LOCK) --extra delta --extra iceberg --extra postgres --extra schema-registry --extra tracing \
	  -c requirements/dev.lock -o requirements/run.lock pyproject.toml
	echo pyspark | $(LOCK) -c requirements/dev.lock -o requirements/spark.lock -
	echo hatchling | $(LOCK) -c requirements/dev.lock -o requirements/build.lock -
	printf 'hatchling\neditables\n' | $(LOCK) --extra all --extra examples \
	  -c requirements/dev.lock -o requirements/examples.lock pyproject.toml -

clean:  ## Remove the environment and what runs have left here.
	rm -rf $(VENV) .headrace site .mypy_cache .ruff_cache .pytest_cache .hypothesis
