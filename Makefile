# Two commands matter: `make demo` and `make test`. Both set up everything they need first.
VENV   ?= .venv
PYTHON ?= python3
BIN     = $(VENV)/bin
STAMP   = $(VENV)/.ready
# tests wait for Spark more than they compute; those that share a session, or what their file has made, stay together
JOBS   ?= 4

.PHONY: demo test soak check docs bench setup lock clean

demo: setup            ## the main job on embedded Spark
	@scripts/with-java $(BIN)/weir demo

test: setup            ## everything that must hold
	@$(MAKE) --no-print-directory -j 2 check $(VENV)/spark.jsa
	@scripts/with-java $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(TESTS)

soak: setup            ## tests that take a minute or more each
	@scripts/with-java $(BIN)/python -m pytest -m long

check: setup           ## style, types, layers and the links of the documentation
	@$(BIN)/ruff check src evaluation tests examples scripts deploy
	@$(BIN)/ruff format --check src evaluation tests examples scripts deploy
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo --no-cache
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --site-dir $(VENV)/site

docs: setup            ## the documentation as a site, in site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

bench: setup           ## Weir beside Spark's own stateful operators
	@scripts/with-java $(BIN)/weir bench engine

$(VENV)/spark.jsa: | setup
	@scripts/with-java $(BIN)/python scripts/warm $@ 2>$(VENV)/warm.log || { cat $(VENV)/warm.log >&2; exit 1; }

setup: $(STAMP)
	@scripts/with-java true

$(STAMP): pyproject.toml evaluation/pyproject.toml requirements.lock scripts/setup $(wildcard evaluation/src/weir_evaluation/jars/*.xml)
	@scripts/setup "$(PYTHON)" "$(VENV)"
	@touch $(STAMP)

lock:                  ## write requirements.lock anew from pyproject.toml
	@scripts/lock "$(PYTHON)"

clean:
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
