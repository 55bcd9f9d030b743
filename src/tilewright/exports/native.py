"""The compiled launch path of an export: its sources, and their build by the compiler of this machine."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from tilewright.exports.cpp_tables import host_source
from tilewright.exports.errors import NotExportable
from tilewright.exports.variants import Variants
from tilewright.kernel_file import KernelFile

HOST = Path(__file__).parent / "host"
HEADERS = ("values.hpp", "plan.hpp", "maps.hpp")
_COMPILERS = ("c++", "g++", "clang++")
_SECONDS = 300.0


def native_sources(files: Sequence[KernelFile], variants: Variants) -> dict[str, str]:
    """The sources of the extension module, by file name."""
    texts = {name: (HOST / name).read_text("utf-8") for name in (*HEADERS, "driver.hpp", "module.cpp")}
    return {**texts, "generated.hpp": host_source(files, variants)}


def build_extension(sources: dict[str, str]) -> bytes | None:
    """The extension module for Python's stable ABI; None where there is no C++ compiler or no header of Python."""
    return _built(tuple(sorted(sources.items())))


@lru_cache(maxsize=4)  # a Hub project has the same one in two places
def _built(sources: tuple[tuple[str, str], ...]) -> bytes | None:
    compiler = next((found for name in _COMPILERS if (found := shutil.which(name))), None)
    include = sysconfig.get_paths()["include"]
    if compiler is None or not Path(include, "Python.h").is_file():
        return None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in sources:
            (folder / file).write_text(text, encoding="utf-8")
        output = folder / "_native.abi3.so"
        # libstdc++ stays outside: torch brings one, and the static one asks for a C library as new as this machine's.
        options = ["-O2", "-std=c++17", "-fPIC", "-shared", "-fvisibility=hidden"]
        command = [compiler, *options, f"-I{include}", f"-I{folder}", str(folder / "module.cpp"), "-o", str(output)]
        done = subprocess.run([*command, "-s"], capture_output=True, text=True, timeout=_SECONDS, check=False)
        if done.returncode:
            raise NotExportable(f"{compiler} does not build the launch path: {done.stderr[-2000:]}")
        return output.read_bytes()
