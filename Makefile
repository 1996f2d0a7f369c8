# Plain pip and venv. `make run` and `make test` set up what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
COMPILED := $(VENV)/.compiled
# By itself pip compiles all that it installs, on one processor: half of its time, for much that nobody imports.
PIP := $(BIN)/python -m pip install --quiet --no-compile

.PHONY: run compiled test test-all lint docs selftest matrix gpu-test real-input workloads schema report-picture wheel clean
.DEFAULT_GOAL := run

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --constraint constraints.txt --upgrade pip  # that of Python 3.11 takes twice as long
	$(PIP) --constraint constraints.txt torch
	$(PIP) --constraint constraints.txt --editable '.[run,report,serve,serving,dev,docs]'
	# The loaders that exports are held to, alone: the rest that they depend on is large, and they do without here.
	$(PIP) --constraint constraints.txt --no-deps flashinfer-bench docstring-parser kernels tomlkit
	# In a folder of its own: wherever transformers finds FLA it takes its kernels, and those need a GPU.
	$(PIP) --constraint constraints.txt --no-deps --target $(VENV)/fla fla-core einops
	touch $@

# Before the tests, because many processes start with them, and where none may keep what it has compiled, each would compile
# the same. Some files are templates: that they are no Python is no error. The models of transformers are a fifth of the code,
# and few are imported.
compiled: $(COMPILED)
$(COMPILED): $(STAMP)
	$(BIN)/python -m compileall -qq -j 0 -x '/(tests|transformers/models|mypy|pip|selenium)/' $(VENV)/lib $(VENV)/fla || true
	touch $@

# The smoke suites of all definitions, with every solution that this machine can run.
run: $(COMPILED)
	$(BIN)/gdnspec check

test: $(COMPILED)
	$(BIN)/python -m pytest -n 3 --dist loadgroup -m "not thorough"  # some wait for a process; each costs what it takes to load all tests

# With what samples stand for in the quick run: minutes more.
test-all: $(COMPILED)
	$(BIN)/python -m pytest -n 3 --dist loadgroup

# Every known-bad solution until a workload rejects it, every honest one: minutes.
selftest: $(COMPILED)
	$(BIN)/gdnspec selftest --sessions
	$(BIN)/gdnspec selftest

# On every workload, and which rejects which in build/kill_matrix.md: many times as long.
matrix: $(COMPILED)
	mkdir -p build
	$(BIN)/gdnspec selftest --markdown build/kill_matrix.md

PROSE := README.md CONTRIBUTING.md docs definitions reference solutions peers benchmarks
lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/prose.py $(PROSE) > /dev/null  # it names the pages that are over a limit on stderr

# The site, in build/site: it fails on a page that is over a limit of tools/prose.py, and on a broken link.
# REPO_URL, if set, is the address of the repository: pages then link to it and to its files. SITE_URL is that of the site.
docs: $(STAMP)
	$(BIN)/python tools/prose.py $(PROSE)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# On a machine with a CUDA GPU, with whatever torch and Triton it has.
gpu-test:
	$(PYTHON) -m pytest -m "gpu and not thorough"  # one at a time: some rows need most of the memory, and some tests a quiet GPU

# Generated data: the tensors of the real model, the suites, the schema.
real-input: $(STAMP)
	$(BIN)/python reference/gdn/scripts/make_real_input.py
	$(BIN)/python reference/kda/scripts/make_real_input.py

workloads: $(STAMP)
	$(BIN)/python tools/make_workloads.py

schema: $(STAMP)
	$(BIN)/python tools/make_schema.py

# docs/report.png: the first screen of the report on the traces of this tree. It needs Chromium.
report-picture: $(STAMP)
	mkdir -p build
	$(BIN)/gdnspec report -o build/report.html
	chromium --headless --no-sandbox --hide-scrollbars --window-size=1400,800 --screenshot=docs/report.png build/report.html

# What users install, with definitions, reference and solutions inside: dist/*.whl
wheel: $(STAMP)
	$(BIN)/python -m hatchling build -t wheel -d dist

clean:
	rm -rf $(VENV) build dist
