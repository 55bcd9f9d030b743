# make demo   set everything up, turn a sentence into a verified kernel with the built-in author
# make test   set everything up, lint, type-check, run the tests
# Nothing here needs a GPU, a CUDA installation or a key.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Assertions are rewritten and modules compiled once, not in every process that a test starts.
unexport PYTHONDONTWRITEBYTECODE

# Whatever this machine's locale is: the files here are UTF-8.
export PYTHONUTF8 := 1

.PHONY: demo test quick lint format types slow gpu sanitize docs dist clean

# Runs and the library of finished kernels go to build/, so that the demo leaves a person's own alone.
demo: export TILEWRIGHT_HOME := $(CURDIR)/build/demo
demo: $(READY)
	@mkdir -p build/demo
	$(BIN)/tilewright make "LayerNorm over the last dimension, then exact GELU" --shape x=4096x1024:bf16 \
		--author playbook --yes --fresh -o build/demo/layernorm_gelu.cu
	@echo "The demo's run is kept apart: export TILEWRIGHT_HOME=$(CURDIR)/build/demo before commands that name it."

# Types and tests side by side: tests spend much of their time waiting for children.
test: lint
	@$(MAKE) --no-print-directory -j2 types quick

# Each process imports torch: beyond sixteen, memory would be what runs out.
quick: $(READY)
	$(BIN)/pytest -n auto --maxprocesses=16

lint: $(READY)
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks

format: $(READY)
	$(BIN)/ruff check --fix src tests benchmarks
	$(BIN)/ruff format src tests benchmarks

types: $(READY)
	$(BIN)/mypy

slow: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt 'ray>=2.40' || echo 'Ray cannot be installed; its tests are skipped'
	$(BIN)/pytest -m slow
	$(BIN)/pytest -m hypothesis --hypothesis-profile=thorough

gpu: $(READY)
	$(BIN)/pytest -m gpu

# The emulator's C under the address and undefined behaviour sanitizers: minutes, and needs gcc.
sanitize: $(READY)
	tests/ptx/sanitize.sh $(BIN)/python

# The generated pages, and the whole as a site; nothing is fetched.
docs: $(READY)
	$(BIN)/python -m tests.frontends.help_pages docs/commands.md
	$(BIN)/python -m tests.docs.api_page docs/api.md
	$(BIN)/python -m tilewright.device_library.page docs/device-library.md
	$(BIN)/tilewright skill skills
	$(BIN)/python -m mkdocs build --quiet
	@echo build/site/index.html

# The wheel is built from the sdist, so that what is missing there is noticed; an error in C stops it.
dist: export TILEWRIGHT_REQUIRE_COMPILED := 1
dist: $(READY)
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist
	@ls -l dist

# A developer's build stops at an error in C: setup.py would go on with the objects of an earlier build.
$(READY): export TILEWRIGHT_REQUIRE_COMPILED := 1

# The constraints keep torch to one known build; CuTe's headers come without the wheel's own Python requirements.
# Modules are compiled when they are first imported: most of the thousands that torch and transformers bring never are.
$(READY): pyproject.toml setup.py constraints.txt src/tilewright/devices/cuda/launcher.c $(wildcard src/tilewright/ptx/core/*)
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps nvidia-cutlass
	touch $@

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
