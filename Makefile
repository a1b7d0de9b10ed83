# Everything a person or CI runs, by name. `make run` and `make test` need only python3 (3.11 or later) and make:
# each creates .venv when it is not there. Stamps inside .venv make the second call quick; a change of
# pyproject.toml or constraints.txt installs again.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Code that protoc 5.26 makes runs with every protobuf since; later ones refuse to run with older libraries. It wants an
# older protobuf for itself than the other tools do.
PROTOC := grpcio-tools==1.65.5 'setuptools<81'
# The parts of ECharts that pages use, bundled: a page of a report holds them inline.
ECHARTS := echarts@6.1.0 esbuild@0.28.2
BANNER  := /*! Apache ECharts 6.1.0, Copyright 2017-2026 The Apache Software Foundation, Apache-2.0; zrender, Copyright 2017 Baidu Inc., BSD-3-Clause; tslib, Copyright Microsoft Corporation, 0BSD. Bundled by "make charts". Licences: LICENSE-echarts.txt */
FAST   := not slow and not benchmark_bar

.PHONY: charts chakra architecture mutants readme accuracy-decisions accuracy-dumps accuracy-gloo accuracy-outside figures gallery examples reference schema help run test test-slow bench lint format types imports docs wheel-check ci clean
.DELETE_ON_ERROR:

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | awk -F'\t' '{printf "make %-12s %s\n", $$1, $$2}'

run: $(VENV)/.installed ## predict the quick-start scenario: its table on the screen, its plot under out/
	$(BIN)/commsim run scenarios/quickstart.yaml

test: $(VENV)/.installed-dev ## the tests without those marked slow
	$(BIN)/python -m pytest -m "$(FAST)" -n 2 $(ARGS)

test-slow: $(VENV)/.installed-dev ## the tests marked slow
	$(BIN)/python -m pytest -m "slow and not benchmark_bar" -n 2 $(ARGS)

bench: $(VENV)/.installed-dev ## the performance bars, one at a time, then the table beside other simulators
	$(BIN)/python -m pytest -m benchmark_bar tests benchmarks $(ARGS)
	$(BIN)/python benchmarks/table.py

mutants: $(VENV)/.installed-dev ## small changes of the package against the tests of their folders (hours; ARGS="--count 20")
	$(BIN)/python tests/mutants.py $(ARGS)

lint: $(VENV)/.installed-dev ## ruff: format and rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: $(VENV)/.installed-dev ## rewrite the files as ruff wants them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: $(VENV)/.installed-dev ## mypy, strict
	$(BIN)/mypy

imports: $(VENV)/.installed-dev ## the import direction between the parts of the package, and no circles inside them
	$(BIN)/lint-imports --no-cache
	cd validation && ../$(BIN)/lint-imports --no-cache

docs: $(VENV)/.installed-dev ## build the documentation into site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

wheel-check: $(VENV)/.installed-dev ## build the wheel, install it elsewhere, run a shipped scenario there
	PYTHON="$(PYTHON)" .ci/wheel-check $(BIN)/python

readme: $(VENV)/.installed-dev ## write the figures and the picture of the README anew
	$(BIN)/python validation/readme.py

architecture: $(VENV)/.installed-dev ## draw the parts of the package and the data between them anew
	$(BIN)/python docs/architecture.py

reference: $(VENV)/.installed-dev schema ## write what the reference pages take from the code anew
	$(BIN)/python docs/reference_pages.py

accuracy-gloo: $(VENV)/.installed-dev ## calibrate the recorded gloo runs and write their page anew (ten minutes)
	$(BIN)/python validation/closed_loop.py

accuracy-outside: $(VENV)/.installed-dev ## predict the curves that no fit has seen and write their page anew (two minutes)
	$(BIN)/python validation/outside.py

accuracy-dumps: $(VENV)/.installed-dev ## run jobs with a late or missing rank, read their dumps and write their page anew (15 minutes)
	$(BIN)/python validation/dumps.py --write

chakra: ## compile the messages of Chakra files anew, in an environment of its own (Python 3.11 or 3.12)
	$(PYTHON) -m venv $(VENV)/protoc
	$(VENV)/protoc/bin/python -m pip install --quiet --disable-pip-version-check $(PROTOC)
	$(VENV)/protoc/bin/python -m grpc_tools.protoc -I. --python_out=. commsim/chakra/messages.proto

charts: ## bundle the chart library of pages anew, with npm, in an environment of its own
	mkdir -p $(VENV)/charts && cp .ci/echarts/entry.js $(VENV)/charts/
	cd $(VENV)/charts && npm install --silent --no-save $(ECHARTS) && npx esbuild entry.js --bundle --minify \
	  --legal-comments=none --format=iife --global-name=echarts --banner:js='$(BANNER)' --outfile=echarts.js
	cp $(VENV)/charts/echarts.js commsim/report/static/echarts.js

gallery: $(VENV)/.installed-dev ## run the commands of the gallery and write its pictures and page anew (eight minutes)
	MPLBACKEND=Agg $(BIN)/python docs/gallery.py

schema: $(VENV)/.installed-dev ## write the JSON Schemas of the documentation anew
	for kind in scenario sweep plan; do $(BIN)/commsim schema $$kind > docs/reference/$$kind.schema.json; done

accuracy-decisions: $(VENV)/.installed-dev ## score plans and tuner rules, write their page and errors anew (ten minutes)
	$(BIN)/python validation/decisions.py --write

examples: $(VENV)/.installed-dev ## execute the guides whose code is executed, write what it prints and draws
	MPLBACKEND=Agg $(BIN)/python docs/examples.py

figures: $(VENV)/.installed-dev ## write the pictures and figures of the pages on algorithms anew
	$(BIN)/python docs/figures.py

ci: ## all of the above, as the continuous integration does it
	.ci/run

clean: ## remove the environment and everything built or predicted
	rm -rf $(VENV) dist build site out

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "commsim needs Python 3.11 or later; '$(PYTHON)' is `$(PYTHON) --version 2>&1`." >&2; \
	  echo "Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml constraints.txt
	@echo "installing commsim into $(VENV) ..."
	@$(PIP) -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.created pyproject.toml constraints.txt
	@echo "installing commsim and its development tools into $(VENV) ..."
	@$(PIP) -e '.[dev]'
	@touch $(VENV)/.installed $@
