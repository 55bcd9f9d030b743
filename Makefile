# make demo   set everything up, build a kernel file for several GPUs, run it in the emulator beside PyTorch, and show
#             what the emulator finds in a broken twin of it
# make test   set everything up, lint, type-check, run the tests
# Nothing here needs a GPU, a CUDA installation or a key.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test quick lint format types slow gpu sanitize docs clean

DEMO_SHAPES := --shape x=32x1000:f32 --shape weight=1000:f32 --shape bias=1000:f32
DEMO_REFERENCE := --reference examples/references.py:layernorm_gelu

# The twin is at fault, so its check ends with status 1; anything else fails the demo.
demo: $(READY)
	$(BIN)/tilewright build examples/layernorm_gelu.cu --shape x=4096x1024:bf16 --shape weight=1024:bf16 --shape bias=1024:bf16 \
		--gpu A100 --gpu "RTX 4090" --gpu H200 --gpu B200
	@printf '\n-- emulated and compared with PyTorch --\n\n'
	$(BIN)/tilewright check examples/layernorm_gelu.cu $(DEMO_REFERENCE) $(DEMO_SHAPES)
	@printf '\n-- the same of its broken twin, with counters --\n\n'
	$(BIN)/tilewright check examples/broken/layernorm_gelu_broken.cu $(DEMO_REFERENCE) $(DEMO_SHAPES) --counters; test $$? -eq 1

test: lint types quick

quick: $(READY)
	$(BIN)/pytest -n auto

lint: $(READY)
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks

format: $(READY)
	$(BIN)/ruff check --fix src tests benchmarks
	$(BIN)/ruff format src tests benchmarks

types: $(READY)
	$(BIN)/mypy

slow: $(READY)
	$(BIN)/pytest -m slow

gpu: $(READY)
	$(BIN)/pytest -m gpu

# The emulator's C under the address and undefined behaviour sanitizers: minutes, and needs gcc.
sanitize: $(READY)
	tests/ptx/sanitize.sh $(BIN)/python

docs: $(READY)
	$(BIN)/python -m tilewright.frontends.help_pages docs/commands.md

# The constraints keep torch to one known build; CuTe's headers come without the wheel's own Python requirements.
$(READY): pyproject.toml setup.py constraints.txt src/tilewright/devices/cuda/launcher.c $(wildcard src/tilewright/ptx/core/*)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps nvidia-cutlass
	touch $@

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
