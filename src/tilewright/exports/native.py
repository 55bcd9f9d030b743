"""The host code of an export: its C++ sources, and their build with the local compiler."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.exports.cpp_tables import host_source
from tilewright.exports.source import Source
from tilewright.exports.variants import Variants
from tilewright.exports.writing import NotExportable
from tilewright.kernel_file import KernelFile
from tilewright.toolchain import FileCache

HOST = Path(__file__).parent / "host"
HEADERS = ("values.hpp", "plan.hpp", "blocks.hpp", "maps.hpp")
_COMPILERS = ("c++", "g++", "clang++")
# libstdc++ is linked dynamically: torch has one, and a static one would need as new a C library as here.
_OPTIONS = ("-O2", "-std=c++17", "-fPIC", "-shared", "-fvisibility=hidden", "-s")
_SECONDS = 300.0


def native_sources(files: Sequence[KernelFile], variants: Variants) -> dict[str, str]:
    """The sources of the extension module, by file name."""
    names = (*HEADERS, "driver.hpp", "python_arguments.hpp", "module.cpp")
    texts = {name: (HOST / name).read_text("utf-8") for name in names}
    return {**texts, "generated.hpp": host_source(files, variants)}


def build_extension(sources: dict[str, str]) -> bytes | None:
    """The extension module for Python's stable ABI; None without a C++ compiler or Python's headers.

    Builds are cached, because a torch package and a Hub project of one kernel share them.
    """
    compiler = next((found for name in _COMPILERS if (found := shutil.which(name))), None)
    include = sysconfig.get_paths()["include"]
    if compiler is None or not Path(include, "Python.h").is_file():
        return None
    what = [*sorted(sources.items()), *_OPTIONS, compiler, str(Path(compiler).resolve().stat().st_mtime_ns), include]
    cache, kept = FileCache(), f"{hashlib.sha256(repr(what).encode()).hexdigest()}.so"
    built = cache.read(kept)
    if built is None:
        with tempfile.TemporaryDirectory(prefix="tilewright-native-") as folder:
            built = _compile(sources, Path(folder), compiler, include).read_bytes()
        with contextlib.suppress(OSError):  # the cache may be read-only
            cache.write(kept, built)
    return built


def _compile(sources: dict[str, str], folder: Path, compiler: str, include: str) -> Path:
    for file, text in sources.items():
        (folder / file).write_text(text, encoding="utf-8")
    output = folder / "_native.abi3.so"
    command = [
        compiler,
        *_OPTIONS,
        "-w",
        f"-I{include}",
        f"-I{folder}",
        str(folder / "module.cpp"),
        "-o",
        str(output),
    ]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False)
    if done.returncode:
        raise NotExportable(f"{compiler} does not build the launch path: {done.stderr.strip()[-2000:]}")
    return output


PLACE = "backward"  # subpackage of the backward kernel


@dataclass(frozen=True)
class BackwardKernel:
    """The backward kernel of a package, and where each of its parameters comes from."""

    source: Source
    variants: Variants
    takes: tuple[tuple[str, int], ...]  # "gradient", "input" or "result" of the forward, and its number
    gives: tuple[int, ...]  # the forward inputs whose gradients it returns
    input_ranks: tuple[int | None, ...]  # ranks of the forward inputs that the kernels take; None: no tensor
    result_ranks: tuple[int, ...]
    leading: tuple[int, ...]  # inputs that may have more leading dimensions, which are flattened

    @staticmethod
    def of(forward: Source, backward: Source, variants: Variants) -> BackwardKernel:
        task, made = forward.task, backward.task
        if task is None or made is None or made.derivative is None:
            raise NotExportable(f"{backward.op.name} does not say whose gradients it computes; make it again")
        derivative = made.derivative
        inputs = [one.name for one in forward.op.parameters]
        results = list(forward.op.results)
        gradients = dict(zip(derivative.gradients, derivative.results, strict=True))
        takes: list[tuple[str, int]] = []
        for one in backward.op.parameters:
            if one.name in gradients:
                takes.append(("gradient", results.index(gradients[one.name])))
            elif one.name in inputs:
                takes.append(("input", inputs.index(one.name)))
            else:
                takes.append(("result", results.index(one.name)))
        ranks = {one.name: len(one.dimensions) for one in task.tensors}
        return BackwardKernel(
            source=backward,
            variants=variants,
            takes=tuple(takes),
            gives=tuple(inputs.index(name) for name in derivative.by),
            input_ranks=tuple(ranks.get(name) for name in inputs),
            result_ranks=tuple(len(one.shape) for one in task.outputs),
            leading=tuple(inputs.index(name) for name, _ in task.leading),
        )
