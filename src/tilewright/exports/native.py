"""The compiled launch path of an export: its sources, and their build by the compiler of this machine."""

from __future__ import annotations

import contextlib
import hashlib
import os
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
from tilewright.toolchain import cache_directory

HOST = Path(__file__).parent / "host"
HEADERS = ("values.hpp", "plan.hpp", "blocks.hpp", "maps.hpp")
_COMPILERS = ("c++", "g++", "clang++")
# libstdc++ stays outside: torch brings one, and the static one asks for a C library as new as this machine's.
_OPTIONS = ("-O2", "-std=c++17", "-fPIC", "-shared", "-fvisibility=hidden", "-s")
_QUIET = ("-w",)  # where a build fails, what is said is the error alone
_SECONDS = 300.0


def native_sources(files: Sequence[KernelFile], variants: Variants) -> dict[str, str]:
    """The sources of the extension module, by file name."""
    names = (*HEADERS, "driver.hpp", "python_arguments.hpp", "module.cpp")
    texts = {name: (HOST / name).read_text("utf-8") for name in names}
    return {**texts, "generated.hpp": host_source(files, variants)}


def build_extension(sources: dict[str, str]) -> bytes | None:
    """The extension module for Python's stable ABI; None where there is no C++ compiler or no header of Python.

    Builds are kept beside those of kernels: a torch package and a Hub project of one kernel have the same.
    """
    compiler = next((found for name in _COMPILERS if (found := shutil.which(name))), None)
    include = sysconfig.get_paths()["include"]
    if compiler is None or not Path(include, "Python.h").is_file():
        return None
    what = [*sorted(sources.items()), *_OPTIONS, compiler, str(Path(compiler).resolve().stat().st_mtime_ns), include]
    kept = cache_directory() / "native" / f"{hashlib.sha256(repr(what).encode()).hexdigest()}.so"
    with contextlib.suppress(OSError):  # not there, or evicted this instant
        built = kept.read_bytes()
        os.utime(kept.parent)  # the time of last use
        return built
    # Not below the cache: another process that makes room there would take the folder away under the compiler.
    with tempfile.TemporaryDirectory(prefix="tilewright-native-") as folder:
        built = _compile(sources, Path(folder), compiler, include).read_bytes()
    with contextlib.suppress(OSError):  # a cache that cannot be written is done without
        _keep(built, kept)
    return built


def _keep(built: bytes, kept: Path) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as writing:
        writing.write(built)
    Path(writing.name).rename(kept)


def _compile(sources: dict[str, str], folder: Path, compiler: str, include: str) -> Path:
    for file, text in sources.items():
        (folder / file).write_text(text, encoding="utf-8")
    output = folder / "_native.abi3.so"
    command = [
        compiler,
        *_OPTIONS,
        *_QUIET,
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


# -- the kernel for an op's gradients in an exported package: --

PLACE = "backward"  # of its package within the forward's


@dataclass(frozen=True)
class BackwardPart:
    """A backward and what it is given: for each of its parameters where that comes from, and its place there."""

    source: Source
    variants: Variants
    takes: tuple[tuple[str, int], ...]  # "gradient", "input" or "result" of the forward, and the number of it
    gives: tuple[int, ...]  # the inputs whose gradients its results are
    input_ranks: tuple[int | None, ...]  # of the forward's inputs as both kernels were made for; None: no tensor
    result_ranks: tuple[int, ...]
    leading: tuple[int, ...]  # inputs that may have more dimensions in front, which are laid flat for it

    @staticmethod
    def of(forward: Source, backward: Source, variants: Variants) -> BackwardPart:
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
        return BackwardPart(
            source=backward,
            variants=variants,
            takes=tuple(takes),
            gives=tuple(inputs.index(name) for name in derivative.by),
            input_ranks=tuple(ranks.get(name) for name in inputs),
            result_ranks=tuple(len(one.shape) for one in task.outputs),
            leading=tuple(inputs.index(name) for name, _ in task.leading),
        )
