"""Operations from text, and, with a GPU, each of them once through either launcher."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.devices.cuda.null_driver import compiled_launcher_module

from tilewright.runtime import Operation, load

Make = Callable[..., Operation]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """`make(text, text, ...)`: an operation of these files, in this order."""

    def made(*texts: str, **options: Any) -> Operation:
        paths = [tmp_path / f"k{number}.cu" for number in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text)
        return load(paths, **options)

    return made


@pytest.fixture(scope="session")
def executors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One executor of cuda:0 for each launcher."""
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    from tilewright.devices.cuda.executor import Executor
    from tilewright.devices.cuda.launcher import DRIVER_LIBRARY, CompiledLauncher, PythonLauncher, open_library

    library = open_library()
    module = compiled_launcher_module(tmp_path_factory.mktemp("launcher"))
    return {
        "compiled": Executor(0, CompiledLauncher(library, module, DRIVER_LIBRARY)),
        "python": Executor(0, PythonLauncher(library)),
    }


@pytest.fixture(params=["compiled", "python"])
def gpu_make(
    request: pytest.FixtureRequest, executors: dict[str, Any], make: Make, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Make]:
    """`make` on cuda:0 through one launcher, then through the other. Whatever a test leaves running is awaited."""
    chosen = executors[request.param]
    monkeypatch.setattr("tilewright.runtime.operation.executor_of", lambda index: chosen)
    torch.manual_seed(0)
    yield make
    torch.cuda.synchronize()
