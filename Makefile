# make demo   set everything up, build a kernel file for several GPUs and show what came out
# make test   set everything up, lint, type-check, run the tests
# Nothing here needs a GPU, a CUDA installation or a key.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test quick lint format types slow gpu docs clean

demo: $(READY)
	$(BIN)/tilewright build examples/layernorm_gelu.cu --shape x=4096x1024:bf16 --shape weight=1024:bf16 --shape bias=1024:bf16 \
		--gpu A100 --gpu "RTX 4090" --gpu H200 --gpu B200

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

docs: $(READY)
	$(BIN)/python -m tilewright.frontends.help_pages docs/commands.md

# The constraints keep torch to one known build; CuTe's headers come without the wheel's own Python requirements.
$(READY): pyproject.toml setup.py constraints.txt src/tilewright/devices/cuda/launcher.c
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps nvidia-cutlass
	touch $@

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
