"""`tilewright doctor`: what this machine offers and what would improve it. Names of keys are shown, never values."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilewright import __version__
from tilewright.devices.cuda import DriverError, driver_version, launcher_available, profiles
from tilewright.devices.emulation.programs import core_problem, core_width
from tilewright.devices.profiler import NCU
from tilewright.devices.sanitizer import SANITIZER
from tilewright.models.opening import DEFAULTS, default_model_name
from tilewright.store import Store
from tilewright.toolchain import ToolchainError, cache_directory, cache_size_bytes, find_toolkit

KEYS = tuple(variable for variable, _ in DEFAULTS)
# Packages behind the models: the providers that need each, and how it is had.
_CLIENTS = (
    ("anthropic", "anthropic", "anthropic"),
    ("openai", "openai and hf", "openai"),
    ("transformers", "transformers", "'tilewright[local]'"),
)
LOW_DISK_BYTES = 5 << 30


class State(str, Enum):
    GOOD = "good"
    ABSENT = "absent"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """One thing looked at. `blocks`: without it kernels cannot be built here."""

    about: str
    state: State
    found: str
    improve: str = ""
    blocks: bool = False


def diagnose() -> tuple[Finding, ...]:
    """Look at everything once; nothing is installed, spent or sent."""
    return (
        _system(),
        *_compiler(),
        *_gpu(),
        _launcher(),
        _emulator(),
        _keys(),
        _author(),
        *_clients(),
        _runs(),
        _disk(),
    )


def show_findings(console: Console, findings: tuple[Finding, ...]) -> None:
    marks = {
        State.GOOD: Text("ok", style="green"),
        State.ABSENT: Text("-", style="yellow"),
        State.PROBLEM: Text("!", style="red"),
    }
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for finding in findings:
        table.add_row(marks[finding.state], finding.about, Text(finding.found))
        if finding.improve:
            table.add_row("", "", Text(f"-> {finding.improve}", style="dim"))
    console.print(table)


def _system() -> Finding:
    packages = ", ".join(f"{name} {_version(name)}" for name in ("torch", "numpy", "cuda-bindings"))
    text = f"tilewright {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    if sys.platform != "linux":
        return Finding(
            "system", State.PROBLEM, text, "NVRTC wheels exist for Linux only; use Linux or WSL", blocks=True
        )
    return Finding("system", State.GOOD, f"{text}; {packages}")


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _compiler() -> Iterator[Finding]:
    try:
        toolkit = find_toolkit()
    except ToolchainError as error:
        yield Finding("compiler", State.PROBLEM, "NVRTC was not found", str(error), blocks=True)
        return
    yield Finding("compiler", State.GOOD, f"{toolkit.compiler} ({toolkit.library})")
    if toolkit.cute_include is None:
        advice = "pip install --no-deps nvidia-cutlass, for files that include <cute/...>"
        yield Finding("CuTe headers", State.ABSENT, "not found", advice)
    else:
        yield Finding("CuTe headers", State.GOOD, str(toolkit.cute_include))
    if toolkit.cuobjdump is None or toolkit.nvdisasm is None:
        advice = "pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"
        yield Finding("disassembler", State.ABSENT, "cuobjdump or nvdisasm not found; no SASS highlights", advice)
    else:
        yield Finding("disassembler", State.GOOD, str(toolkit.cuobjdump))


def _gpu() -> Iterator[Finding]:
    try:
        driver = driver_version()
        found = profiles()
    except DriverError as error:
        advice = "kernels run emulated; to time them, feed a GPU machine through `python -m tilewright.worker DIR`"
        yield Finding("GPU", State.ABSENT, f"none ({error})", advice)
        return
    for index, profile in enumerate(found):
        memory = f"{profile.memory_bytes / 1e9:.0f} GB" if profile.memory_bytes else "unknown memory"
        text = f"cuda:{index} {profile.name}, {profile.arch}, {profile.sms} SMs, {memory}, L2 {profile.l2 >> 20} MiB"
        yield Finding("GPU", State.GOOD, text)
    yield _driver(driver)
    yield _tool("profiler", NCU.find(), "Nsight Compute (ncu)", "the last stage then sees the GPU's own counters")
    yield _tool("sanitizer", SANITIZER.find(), "compute-sanitizer", "kernels that no emulator runs are then checked")


def _tool(about: str, path: str | None, name: str, use: str) -> Finding:
    if path is None:
        return Finding(about, State.ABSENT, f"{name} not found", f"install it with the CUDA toolkit: {use}")
    return Finding(about, State.GOOD, path)


def _driver(driver: tuple[int, int]) -> Finding:
    text = f"supports CUDA {driver[0]}.{driver[1]}"
    try:
        compiler = _major_minor(find_toolkit().compiler)
    except ToolchainError:
        return Finding("driver", State.GOOD, text)
    if compiler > driver:
        advice = (
            f"the compiler is CUDA {compiler[0]}.{compiler[1]}; install nvidia-cuda-nvrtc=={driver[0]}.{driver[1]}.* "
            "or a newer driver if a kernel fails to load"
        )
        return Finding("driver", State.PROBLEM, text, advice)
    return Finding("driver", State.GOOD, text)


def _major_minor(compiler: str) -> tuple[int, int]:
    """(13, 0) of "NVRTC 13.0.88"."""
    major, minor = compiler.split()[-1].split(".")[:2]
    return int(major), int(minor)


def _launcher() -> Finding:
    if launcher_available():
        return Finding("launcher", State.GOOD, "compiled")
    advice = "install a C compiler and reinstall tilewright; calls then cost a few microseconds less"
    return Finding("launcher", State.ABSENT, "pure Python", advice)


def _emulator() -> Finding:
    problem = core_problem()
    if problem is None:
        return Finding("emulator", State.GOOD, f"compiled, {core_width()} code chosen for this processor")
    return Finding("emulator", State.ABSENT, "its interpreter is not compiled; kernels need a GPU to run", problem)


def _keys() -> Finding:
    present = [name for name in KEYS if os.environ.get(name, "").strip()]
    if present:
        return Finding("keys", State.GOOD, f"{', '.join(present)} set")
    return Finding("keys", State.ABSENT, f"none of {', '.join(KEYS)} is set; nothing here needs one")


def _author() -> Finding:
    """Who would write a kernel if `make` were not told."""
    name = default_model_name(os.environ)
    if name is None:
        advice = "it knows pointwise operations and those along rows; name another author with --model PROVIDER:NAME"
        return Finding("author", State.GOOD, "the built-in playbook, as no key is set", advice)
    key = next(variable for variable, model in DEFAULTS if model == name)
    return Finding("author", State.GOOD, f"{name}, as {key} is set; --author playbook asks nobody")


def _clients() -> Iterator[Finding]:
    """Whether the packages behind the models can be imported; they are, because that is where they fail."""
    for package, providers, requirement in _CLIENTS:
        about = package
        if importlib.util.find_spec(package) is None:
            advice = f"pip install {requirement}, for {providers} models"
            yield Finding(about, State.ABSENT, "not installed", advice)
            continue
        try:
            importlib.import_module(package)
        except Exception as error:  # whatever a package that does not fit its surroundings raises
            reason = f"cannot be imported: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
            yield Finding(about, State.PROBLEM, reason, f"reinstall it, for {providers} models")
            continue
        yield Finding(about, State.GOOD, f"{_version(package)}, for {providers} models")


def _runs() -> Finding:
    store = Store()
    listing = store.runs()
    kernels = sum(1 for _ in store.library.all())
    counts = [_count(len(listing.runs), "run"), f"{_count(kernels, 'kernel')} in the library"]
    counts += [f"{_count(len(listing.waiting), 'request')} without a specification"] if listing.waiting else []
    text = f"{store.home}: {', '.join(counts)}"
    if listing.broken:
        advice = f"{len(listing.broken)} cannot be read; `tilewright runs` says why"
        return Finding("runs", State.PROBLEM, text, advice)
    return Finding("runs", State.GOOD, text)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _disk() -> Finding:
    directory = cache_directory()
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    text = f"build cache {directory}, {cache_size_bytes() / 2**20:.0f} MiB used, {free / 2**30:.0f} GiB free"
    if not os.access(existing, os.W_OK):
        return Finding(
            "disk", State.PROBLEM, text, "the folder cannot be written; set TILEWRIGHT_CACHE to one that can"
        )
    if free < LOW_DISK_BYTES:
        return Finding("disk", State.PROBLEM, text, "little room is left; free some or set TILEWRIGHT_CACHE elsewhere")
    return Finding("disk", State.GOOD, text)
