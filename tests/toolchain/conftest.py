"""Short cuts shared by the toolchain tests: compile a source in this process, without a cache."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tilewright.records import Build, BuildFailure, BuildRequest, ConstantValue
from tilewright.toolchain import build

Compile = Callable[..., Build | BuildFailure]


def compile_here(
    source: str,
    *kernels: str,
    arch: str = "sm_90a",
    constants: tuple[tuple[str, ConstantValue], ...] = (),
    name: str = "kernel.cu",
) -> Build | BuildFailure:
    return build(BuildRequest(source, constants, kernels or ("k",), arch, name), isolated=False, cache=None)


@pytest.fixture
def compiled() -> Callable[..., Build]:
    """Compiles a source that must build."""

    def run(*arguments: str, **options: object) -> Build:
        result = compile_here(*arguments, **options)  # type: ignore[arg-type]
        assert isinstance(result, Build), result
        return result

    return run


@pytest.fixture
def refused() -> Callable[..., BuildFailure]:
    """Compiles a source that must not build."""

    def run(*arguments: str, **options: object) -> BuildFailure:
        result = compile_here(*arguments, **options)  # type: ignore[arg-type]
        assert isinstance(result, BuildFailure)
        return result

    return run
