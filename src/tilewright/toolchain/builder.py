"""`build`: a request to a build, through the cache, in this process or in a limited child.

`build_plan` is the whole way from a kernel file and the arguments of a call to what a device runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import os
import shutil
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from tilewright import records
from tilewright.kernel_file import Arguments, Choice, Evaluation, KernelFile, bind, evaluate, settle
from tilewright.records import (
    BoundPlan,
    Build,
    BuildFailure,
    BuildRequest,
    Dim3,
    FailureReason,
    GpuProfile,
    RecordError,
    from_json,
    to_json,
)
from tilewright.toolchain.compile import compile_request
from tilewright.toolchain.diagnostics import with_file_name
from tilewright.toolchain.nvrtc import ToolchainError, Toolkit, find_toolkit
from tilewright.toolchain.pool import BuildLimits, CompilePool
from tilewright.toolchain.translation_unit import assemble

# -- finished builds on disk, by content address --

DEFAULT_LIMIT_BYTES = 2 << 30
LASTING_FAILURES = frozenset(
    {
        FailureReason.DIAGNOSTICS,
        FailureReason.EXTERNAL,
        FailureReason.DEVICE_STATE,
        FailureReason.DEVICE_CALL,
    }
)

_RECORD, _CUBIN, _PTX = "record.json", "kernel.cubin", "kernel.ptx"
TEMPORARY = ".writing-"
_STALE_SECONDS = 600.0
_IN_USE_SECONDS = 3600.0  # a folder without a record may be another writer's for so long after its last change
_LOOK_AGAIN_FRACTION = 32  # a writer measures the whole cache again after this part of the limit


class BuildCache:
    """A folder of builds. Without arguments: TILEWRIGHT_CACHE or ~/.cache/tilewright/builds, TILEWRIGHT_CACHE_BYTES."""

    def __init__(self, directory: Path | None = None, limit_bytes: int | None = None) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._serial = itertools.count()
        self._written_bytes: int | None = None  # since the cache was last measured; None before the first time
        self._warned = False

    @property
    def directory(self) -> Path:
        if self._directory is not None:
            return self._directory
        named = os.environ.get("TILEWRIGHT_CACHE")
        return Path(named).expanduser() if named else Path.home() / ".cache" / "tilewright" / "builds"

    @property
    def limit_bytes(self) -> int:
        if self._limit_bytes is not None:
            return self._limit_bytes
        named = os.environ.get("TILEWRIGHT_CACHE_BYTES", "")
        if named and not named.isdecimal():
            raise ToolchainError(f"TILEWRIGHT_CACHE_BYTES is {named!r}; write a number of bytes, such as {2 << 30}")
        return int(named) if named else DEFAULT_LIMIT_BYTES

    def get(self, key: str) -> Build | BuildFailure | None:
        """The result kept under a key, or None. A damaged entry is removed on the way."""
        entry = self.directory / key
        try:
            digest, _, record = (entry / _RECORD).read_bytes().partition(b"\n")
        except OSError:
            return None
        try:
            cubin = (entry / _CUBIN).read_bytes()
            stored = Stored(record, cubin, (entry / _PTX).read_bytes())
            if digest != _digest(stored):
                raise RecordError("digest differs")
            result = from_stored(stored)
        except (OSError, RecordError):
            self._remove(entry)
            return None
        with contextlib.suppress(OSError):  # removed meanwhile, or a cache that may only be read
            os.utime(entry / _RECORD)  # the time of last use
        return result

    def put(self, key: str, result: Build | BuildFailure) -> None:
        """Keep a result, if it is of a lasting kind. A cache that cannot be written warns once and is done without."""
        if isinstance(result, BuildFailure) and result.reason not in LASTING_FAILURES:
            return
        stored = to_stored(result)
        try:
            self._write(key, stored)
            self._written(sum(map(len, stored)))
        except OSError as error:
            if not self._warned:
                self._warned = True
                warnings.warn(
                    f"builds are not cached: {error}; set TILEWRIGHT_CACHE to a writable folder", stacklevel=3
                )

    def size_bytes(self) -> int:
        """What all entries take together."""
        return sum(size for _, size, _ in self._entries())

    def trim(self) -> None:
        """Remove the least recently used entries until the limit holds, and what killed writers left."""
        entries = sorted(self._entries())
        total = sum(size for _, size, _ in entries)
        young = time.time() - _IN_USE_SECONDS
        for used, size, entry in entries:
            if total <= self.limit_bytes:
                break
            if used > young and not (entry / _RECORD).is_file():
                continue
            self._remove(entry)
            total -= size
        for leftover in self.directory.glob(f"{TEMPORARY}*"):
            try:
                if time.time() - leftover.stat().st_mtime > _STALE_SECONDS:
                    shutil.rmtree(leftover, ignore_errors=True)
            except OSError:
                continue

    def _write(self, key: str, stored: Stored) -> None:
        entry = self.directory / key
        temporary = self._temporary()
        temporary.mkdir(parents=True)
        try:
            (temporary / _CUBIN).write_bytes(stored.cubin)
            (temporary / _PTX).write_bytes(stored.ptx)
            (temporary / _RECORD).write_bytes(_digest(stored) + b"\n" + stored.record)
            try:
                temporary.rename(entry)
            except OSError:
                if (entry / _RECORD).is_file():
                    return  # another writer was first, and the same key holds the same build
                self._remove(entry)
                temporary.rename(entry)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _written(self, size: int) -> None:
        with self._lock:
            if self._written_bytes is not None:
                self._written_bytes += size
                if self._written_bytes < self.limit_bytes // _LOOK_AGAIN_FRACTION:
                    return
            self._written_bytes = 0
        self.trim()

    def _entries(self) -> list[tuple[float, int, Path]]:
        """(time of last use, bytes, folder) of every entry, and of other folders, which have no record."""
        found: list[tuple[float, int, Path]] = []
        try:
            folders = list(os.scandir(self.directory))
        except OSError:
            return found
        for folder in folders:
            if folder.name.startswith(TEMPORARY):
                continue
            try:
                stats = {file.name: file.stat() for file in os.scandir(folder.path)}
                used = stats[_RECORD].st_mtime if _RECORD in stats else folder.stat().st_mtime
            except OSError:
                continue
            found.append((used, sum(stat.st_size for stat in stats.values()), Path(folder.path)))
        return found

    def _remove(self, entry: Path) -> None:
        # Renamed first, so that no reader finds half an entry.
        doomed = self._temporary()
        try:
            entry.rename(doomed)
        except OSError:
            return
        shutil.rmtree(doomed, ignore_errors=True)

    def _temporary(self) -> Path:
        return (
            self.directory / f"{TEMPORARY}{os.getpid()}-{threading.get_ident()}-{next(self._serial)}-{time.time_ns()}"
        )


def _digest(stored: Stored) -> bytes:
    digest = hashlib.sha256()
    for part in stored:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest().encode()


class Stored(NamedTuple):
    """A build's result as the three files of an entry."""

    record: bytes  # JSON, without cubin and PTX
    cubin: bytes
    ptx: bytes


def to_stored(result: Build | BuildFailure) -> Stored:
    if isinstance(result, Build):
        bare = replace(result, cubin=b"", ptx="")
        return Stored(json.dumps(to_json(bare)).encode(), result.cubin, result.ptx.encode())
    return Stored(json.dumps(to_json(result)).encode(), b"", b"")


def from_stored(stored: Stored) -> Build | BuildFailure:
    """The result again; raises `RecordError` where the bytes are not one."""
    try:
        data = json.loads(stored.record)
        ptx = stored.ptx.decode()
    except ValueError as error:
        raise RecordError(f"not a stored build: {error}") from None
    if isinstance(data, dict) and data.get("is") == "BuildFailure":
        failure: BuildFailure = from_json(BuildFailure, data)
        return failure
    build: Build = from_json(Build, data)
    return replace(build, cubin=stored.cubin, ptx=ptx)


# Part of every key: changes when the same compiler output would be read or judged differently.
RULES_VERSION = 3

DEFAULT_CACHE = BuildCache()
DEFAULT_LIMITS = BuildLimits()


def build(
    request: BuildRequest,
    *,
    isolated: bool = True,
    limits: BuildLimits = DEFAULT_LIMITS,
    cache: BuildCache | None = DEFAULT_CACHE,
) -> Build | BuildFailure:
    """Build one request. A source that cannot be built is a `BuildFailure`; `ToolchainError` is ours or the machine's.

    `isolated` compiles in a child process under `limits`: for code nobody has vouched for. Without it the compiler runs
    in this process, without limits: for code its user chose to load. `cache=None` neither reads nor keeps builds.
    """
    if request.arch not in records.ARCHITECTURES:
        raise ToolchainError(f"no build target is called {request.arch!r}; known: {', '.join(records.ARCHITECTURES)}")
    toolkit = find_toolkit()
    key = build_key(request, toolkit)
    result = cache.get(key) if cache is not None else None
    if result is None:
        if isolated:
            result = default_pool().run(request, key, limits)
        else:
            result = compile_request(request, toolkit, key)
        if cache is not None:
            cache.put(key, result)
    return _called_by_name(result, request.name)


def build_many(
    requests: Sequence[BuildRequest],
    *,
    cache: BuildCache | None = DEFAULT_CACHE,
) -> tuple[Build | BuildFailure, ...]:
    """Build several requests on all cores; results in the order of the requests."""
    if not requests:
        return ()
    with ThreadPoolExecutor(max_workers=min(len(requests), default_pool().size)) as executor:
        futures = [executor.submit(copy_context().run, build, request, cache=cache) for request in requests]
        return tuple(future.result() for future in futures)


# -- from a kernel file to what a device runs --


@dataclass(frozen=True)
class BuiltPlan:
    """A kernel file at one call, evaluated, built and bound. `build` is None where it launches nothing."""

    evaluation: Evaluation
    build: Build | None
    plan: BoundPlan  # stands on its own: late numbers are written in

    @classmethod
    def of(cls, evaluation: Evaluation, build: Build | None, arguments: Mapping[str, Any]) -> BuiltPlan:
        """The build bound, and the late numbers of the call written in."""
        late = evaluation.late_values(arguments) if build is not None else ()
        return cls(evaluation, build, bind_plan(evaluation, build, late))

    def job(
        self,
        id: str,
        inputs: tuple[records.InputTensor, ...],
        *,
        returns: tuple[str, ...] = (),
        limits: records.Limits,
        emulation: records.Emulation | None = None,
    ) -> records.Job:
        """One run of it on these inputs: emulated as `emulation` says, or on a GPU where it says nothing."""
        return records.Job(
            id,
            self.evaluation.gpu.arch,
            cubin=self.build.cubin if self.build is not None and emulation is None else b"",
            plan=self.plan,
            inputs=inputs,
            returns=returns,
            limits=limits,
            ptx=self.build.ptx if self.build is not None else None,
            emulation=emulation or records.Emulation(),
        )


def build_plan(
    file: KernelFile, arguments: Arguments, gpu: GpuProfile, choice: Choice | None = None, *, isolated: bool = True
) -> BuiltPlan | BuildFailure:
    """Evaluate, build, bind, write the late numbers in. Raises `DoesNotApply`, `KernelFileError`; else as `build`."""
    evaluation = evaluate(file, arguments, gpu, choice)
    request = evaluation.build_request()
    built = build(request, isolated=isolated) if request is not None else None
    return built if isinstance(built, BuildFailure) else BuiltPlan.of(evaluation, built, arguments)


def bind_plan(
    evaluation: Evaluation, build: Build | None, late: Sequence[int | float | bool] | None = None
) -> BoundPlan:
    """The plan of an evaluation and its build, which is None where nothing is launched.

    With the late numbers of a call it stands on its own; without them they are filled in at each call.
    """
    plan = bind(evaluation, build, evaluation.gpu)
    return plan if build is None or late is None else settle(plan, late)


@dataclass(frozen=True)
class LaunchReport:
    """One launch of a plan, with what the build says of its kernel on its GPU."""

    kernel: str
    line: int
    grid: Dim3
    block: Dim3
    cluster: Dim3 | None
    cooperative: bool
    pdl: bool
    dynamic_smem_bytes: int
    resources: records.Resources
    occupancy: records.Occupancy

    @property
    def smem_bytes(self) -> int:
        return self.dynamic_smem_bytes + self.resources.static_smem_bytes


def report_launch(launch: records.Launch, build: Build, gpu: GpuProfile) -> LaunchReport:
    kernel = build.kernel(launch.kernel)
    return LaunchReport(
        launch.kernel,
        launch.line,
        launch.grid,
        launch.block,
        launch.cluster or kernel.cluster,
        launch.cooperative,
        launch.pdl,
        launch.dynamic_smem_bytes,
        kernel.resources,
        launch_occupancy(launch, kernel.resources, gpu),
    )


def launch_occupancy(
    launch: records.Launch | records.PackedLaunch, resources: records.Resources, gpu: GpuProfile
) -> records.Occupancy:
    """How many blocks of a launch fit on a multiprocessor, and what limits them."""
    smem = launch.dynamic_smem_bytes + resources.static_smem_bytes
    return records.occupancy(gpu, resources.registers, math.prod(launch.block), smem, resources.barriers)


# -- where builds are kept --


def build_key(request: BuildRequest, toolkit: Toolkit) -> str:
    """The content address of a request: source, constants, kernels, options, compiler and headers, not its name."""
    unit = assemble(request)
    parts = [RULES_VERSION, unit.text, unit.options, unit.kernels, toolkit.fingerprint]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@lru_cache(maxsize=1)
def default_pool() -> CompilePool:
    """The pool of this process; its children start with the first isolated build."""
    return CompilePool()


def cache_directory() -> Path:
    """Where builds are kept."""
    return DEFAULT_CACHE.directory


def cache_size_bytes() -> int:
    """What the kept builds take."""
    return DEFAULT_CACHE.size_bytes()


def _called_by_name(result: Build | BuildFailure, name: str) -> Build | BuildFailure:
    if isinstance(result, Build):
        return replace(result, warnings=with_file_name(result.warnings, name)) if result.warnings else result
    return replace(result, diagnostics=with_file_name(result.diagnostics, name))
