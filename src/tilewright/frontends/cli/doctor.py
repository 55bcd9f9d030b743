"""`tilewright doctor`: what this machine offers and what would improve it. Names of keys are shown, never values."""

from __future__ import annotations

import contextlib
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

from tilewright import __version__
from tilewright.child.boundary import Strength, strength, strength_words
from tilewright.devices.cuda import DriverError, driver_version, launcher_available, profiles
from tilewright.devices.emulation.programs import core_problem, core_width
from tilewright.devices.profiler import NCU
from tilewright.devices.sanitizer import SANITIZER
from tilewright.frontends.cli.terminal import FAULT, JsonOption, deliver, exit_with
from tilewright.frontends.report import document as doc
from tilewright.frontends.report.runs import number_of
from tilewright.models import default_provider, key_variables, providers
from tilewright.store import Store
from tilewright.toolchain import ToolchainError, cache_directory, cache_size_bytes, find_toolkit
from tilewright.toolchain.nvrtc import INSTALL_TOOLS

LOW_DISK_BYTES = 5 << 30


class State(str, Enum):
    """How a thing was found: as it should be, not there, or there and not as it should be."""

    GOOD = "good"
    ABSENT = "absent"
    PROBLEM = "problem"


_MARKS = {State.GOOD: ("ok", doc.Tone.GOOD), State.ABSENT: ("-", doc.Tone.FAIR), State.PROBLEM: ("!", doc.Tone.BAD)}


@dataclass(frozen=True)
class MachineFact:
    """One thing looked at. `blocks`: without it kernels cannot be built here."""

    about: str
    state: State
    found: str
    improve: str = ""
    blocks: bool = False


def doctor(as_json: JsonOption = False) -> None:
    """Show what this machine offers (GPU, driver, compiler, headers, keys by name, disk) and what would improve it."""
    facts = diagnose()
    deliver(facts, as_json, [facts_table(facts)])
    exit_with(FAULT if any(fact.blocks for fact in facts) else 0)


def diagnose() -> tuple[MachineFact, ...]:
    """Look at everything once; nothing is installed, spent or sent."""
    authors = (_keys(), _author(), *_clients())
    return (_system(), *_compiler(), *_gpu(), _launcher(), _emulator(), _boundary(), *authors, _runs(), _disk())


def facts_table(facts: tuple[MachineFact, ...]) -> doc.Table:
    rows: list[tuple[doc.Cell, ...]] = []
    for fact in facts:
        rows.append(((doc.Mark(*_MARKS[fact.state]),), (doc.Mark(fact.about),), fact.found))
        rows += [("", "", (doc.Mark(f"-> {fact.improve}", doc.Tone.FAINT),))] if fact.improve else []
    return doc.Table(("", "", ""), tuple(rows))


def _system() -> MachineFact:
    packages = ", ".join(f"{name} {_version(name)}" for name in ("torch", "numpy", "cuda-bindings"))
    text = f"tilewright {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    if sys.platform != "linux":
        advice = "NVRTC wheels exist for Linux only; use Linux or WSL"
        return MachineFact("system", State.PROBLEM, text, advice, blocks=True)
    return MachineFact("system", State.GOOD, f"{text}; {packages}")


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _compiler() -> Iterator[MachineFact]:
    try:
        toolkit = find_toolkit()
    except ToolchainError as error:
        yield MachineFact("compiler", State.PROBLEM, "NVRTC was not found", str(error), blocks=True)
        return
    yield MachineFact("compiler", State.GOOD, f"{toolkit.compiler} ({toolkit.library})")
    advice = "pip install --no-deps nvidia-cutlass, for files that include <cute/...>"
    yield _fact("CuTe headers", toolkit.cute_include, "not found", advice)
    yield _fact("disassembler", toolkit.nvdisasm, "nvdisasm not found; no SASS highlights", INSTALL_TOOLS)


def _fact(about: str, found: object, absent: str, advice: str) -> MachineFact:
    """What was found, or what its absence means and what to do about it."""
    if found is None:
        return MachineFact(about, State.ABSENT, absent, advice)
    return MachineFact(about, State.GOOD, str(found))


def _gpu() -> Iterator[MachineFact]:
    try:
        driver = driver_version()
        found = profiles()
    except DriverError as error:
        advice = "kernels run emulated; to time them, feed a GPU machine through `python -m tilewright.worker DIR`"
        yield MachineFact("GPU", State.ABSENT, f"none ({error})", advice)
        return
    for index, profile in enumerate(found):
        memory = f"{profile.memory_bytes / 1e9:.0f} GB" if profile.memory_bytes else "unknown memory"
        text = f"cuda:{index} {profile.name}, {profile.arch}, {profile.sms} SMs, {memory}, L2 {profile.l2 >> 20} MiB"
        yield MachineFact("GPU", State.GOOD, text)
    yield _driver(driver)
    install = "install it with the CUDA toolkit: "
    use = f"{install}the last stage then sees the GPU's own counters"
    yield _fact("profiler", NCU.find(), "Nsight Compute (ncu) not found", use)
    use = f"{install}kernels that no emulator runs are then checked"
    yield _fact("sanitizer", SANITIZER.find(), "compute-sanitizer not found", use)


def _driver(driver: tuple[int, int]) -> MachineFact:
    text, state, advice = f"supports CUDA {driver[0]}.{driver[1]}", State.GOOD, ""
    with contextlib.suppress(ToolchainError):
        major, minor = find_toolkit().compiler.split()[-1].split(".")[:2]  # 13 and 0 of "NVRTC 13.0.88"
        if (int(major), int(minor)) > driver:
            fitting = f"nvidia-cuda-nvrtc=={driver[0]}.{driver[1]}.*"
            advice = (
                f"the compiler is CUDA {major}.{minor}; install {fitting} or a newer driver if a kernel fails to load"
            )
            state = State.PROBLEM
    return MachineFact("driver", state, text, advice)


def _launcher() -> MachineFact:
    advice = "install a C compiler and reinstall tilewright; calls then cost a few microseconds less"
    return _fact("launcher", "compiled" if launcher_available() else None, "pure Python", advice)


def _emulator() -> MachineFact:
    problem = core_problem()
    found = None if problem is not None else f"compiled, {core_width()} code chosen for this processor"
    return _fact("emulator", found, "its interpreter is not compiled; kernels need a GPU to run", problem or "")


def _boundary() -> MachineFact:
    """What keeps references of others from this machine's files and network."""
    if strength() is Strength.FULL:
        return MachineFact("boundary", State.GOOD, f"{strength_words()} around references")
    advice = "use a container, or Linux 5.13 or newer with Landlock, for references that you do not trust"
    return MachineFact("boundary", State.ABSENT, strength_words(), advice)


def _keys() -> MachineFact:
    keys = key_variables()
    present = ", ".join(name for name in keys if os.environ.get(name, "").strip())
    absent = f"none of {', '.join(keys)} is set; nothing here needs one"
    return _fact("keys", f"{present} set" if present else None, absent, "")


def _author() -> MachineFact:
    """Who would write a kernel if `make` were not told."""
    chosen = default_provider(os.environ)
    if chosen is None:
        advice = "it writes no recurrent networks; name another author with --model PROVIDER:NAME"
        return MachineFact("author", State.GOOD, "the built-in playbook, as no key is set", advice)
    name = f"{chosen.name}:{chosen.default_model}"
    return MachineFact("author", State.GOOD, f"{name}, as {chosen.key} is set; --author playbook asks nobody")


def _clients() -> Iterator[MachineFact]:
    """Whether the packages behind the models can be imported; they are, because that is where they fail."""
    for package in dict.fromkeys(one.package for one in providers().values() if one.package):
        users = [one for one in providers().values() if one.package == package]
        served, requirement = " and ".join(one.name for one in users), users[0].install or package
        if importlib.util.find_spec(package) is None:
            advice = f"pip install {requirement}, for {served} models"
            yield MachineFact(package, State.ABSENT, "not installed", advice)
            continue
        try:
            importlib.import_module(package)
        except Exception as error:  # whatever a package that does not fit its surroundings raises
            reason = f"cannot be imported: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
            yield MachineFact(package, State.PROBLEM, reason, f"reinstall it, for {served} models")
        else:
            yield MachineFact(package, State.GOOD, f"{_version(package)}, for {served} models")


def _runs() -> MachineFact:
    store = Store()
    listing = store.runs()
    kernels = sum(1 for _ in store.library.all())
    counts = [number_of(len(listing.runs), "run"), f"{number_of(kernels, 'kernel')} in the library"]
    counts += [f"{number_of(len(listing.waiting), 'request')} without a specification"] if listing.waiting else []
    text = f"{store.home}: {', '.join(counts)}"
    if listing.broken:
        advice = f"{len(listing.broken)} cannot be read; `tilewright runs` says why"
        return MachineFact("runs", State.PROBLEM, text, advice)
    return MachineFact("runs", State.GOOD, text)


def _disk() -> MachineFact:
    directory = cache_directory()
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    text = f"build cache {directory}, {cache_size_bytes() / 2**20:.0f} MiB used, {free / 2**30:.0f} GiB free"
    advice = ""
    if not os.access(existing, os.W_OK):
        advice = "the folder cannot be written; set TILEWRIGHT_CACHE to one that can"
    elif free < LOW_DISK_BYTES:
        advice = "little room is left; free some or set TILEWRIGHT_CACHE elsewhere"
    return MachineFact("disk", State.PROBLEM if advice else State.GOOD, text, advice)
