"""`build`: compiles a request through the build cache, in this process or in a limited child.

`build_plan` goes from a kernel file and a call's arguments to a bound plan.
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
from typing import Any

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

# -- the build cache on disk, by content address --

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
_IN_USE_SECONDS = 3600.0  # a folder without a record may be in use by another writer this long after its last change
_TRIM_FRACTION = 32  # a writer trims after writing this fraction of the limit


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
        """The cached result, or None. A damaged entry is removed."""
        entry = self.directory / key
        try:
            digest, _, record = (entry / _RECORD).read_bytes().partition(b"\n")
        except OSError:
            return None
        try:
            cubin = (entry / _CUBIN).read_bytes()
            ptx = (entry / _PTX).read_bytes()
            if digest != _digest(record, cubin, ptx):
                raise RecordError("digest differs")
            result = _from_entry(record, cubin, ptx)
        except (OSError, RecordError):
            self._remove(entry)
            return None
        with contextlib.suppress(OSError):  # removed meanwhile, or a read-only cache
            os.utime(entry / _RECORD)  # the time of last use
        return result

    def put(self, key: str, result: Build | BuildFailure) -> None:
        """Store a build or a deterministic failure. A cache that cannot be written warns once."""
        if isinstance(result, BuildFailure) and result.reason not in LASTING_FAILURES:
            return
        cubin, ptx = (result.cubin, result.ptx.encode()) if isinstance(result, Build) else (b"", b"")
        bare = replace(result, cubin=b"", ptx="") if isinstance(result, Build) else result
        record = json.dumps(to_json(bare)).encode()
        try:
            self._write(key, record, cubin, ptx)
            self._written(len(record) + len(cubin) + len(ptx))
        except OSError as error:
            if not self._warned:
                self._warned = True
                warnings.warn(
                    f"builds are not cached: {error}; set TILEWRIGHT_CACHE to a writable folder", stacklevel=3
                )

    def size_bytes(self) -> int:
        """The total size of all entries."""
        return sum(size for _, size, _ in self._entries())

    def trim(self) -> None:
        """Remove the least recently used entries beyond the limit, and the leftovers of killed writers."""
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

    def _write(self, key: str, record: bytes, cubin: bytes, ptx: bytes) -> None:
        entry = self.directory / key
        temporary = self._temporary()
        temporary.mkdir(parents=True)
        try:
            (temporary / _CUBIN).write_bytes(cubin)
            (temporary / _PTX).write_bytes(ptx)
            (temporary / _RECORD).write_bytes(_digest(record, cubin, ptx) + b"\n" + record)
            try:
                temporary.rename(entry)
            except OSError:
                if (entry / _RECORD).is_file():
                    return  # another writer was first; the same key holds the same build
                self._remove(entry)
                temporary.rename(entry)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _written(self, size: int) -> None:
        with self._lock:
            if self._written_bytes is not None:
                self._written_bytes += size
                if self._written_bytes < self.limit_bytes // _TRIM_FRACTION:
                    return
            self._written_bytes = 0
        self.trim()

    def _entries(self) -> list[tuple[float, int, Path]]:
        """(time of last use, bytes, folder) of every entry, including folders without a record."""
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


def _digest(*parts: bytes) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest().encode()


def _from_entry(record: bytes, cubin: bytes, ptx: bytes) -> Build | BuildFailure:
    """The result in the three files of an entry; raises `RecordError`."""
    try:
        data = json.loads(record)
        text = ptx.decode()
    except ValueError as error:
        raise RecordError(f"not a stored build: {error}") from None
    if isinstance(data, dict) and data.get("is") == "BuildFailure":
        failure: BuildFailure = from_json(BuildFailure, data)
        return failure
    build: Build = from_json(Build, data)
    return replace(build, cubin=cubin, ptx=text)


# Part of every cache key; changes when the same compiler output would be interpreted differently.
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
    """Build one request. Returns `BuildFailure` for a faulty source; raises `ToolchainError` for a faulty toolchain.

    `isolated` compiles in a child process under `limits`, for untrusted code; otherwise the compiler runs in this
    process without limits, for code that the user loads. `cache=None` bypasses the cache.
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
    if isinstance(result, Build):
        return replace(result, warnings=with_file_name(result.warnings, request.name)) if result.warnings else result
    return replace(result, diagnostics=with_file_name(result.diagnostics, request.name))


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


# -- built plans --


@dataclass(frozen=True)
class BuiltPlan:
    """A kernel file evaluated, built and bound for one call. `build` is None where it launches nothing."""

    evaluation: Evaluation
    build: Build | None
    plan: BoundPlan  # with late numbers filled in

    @classmethod
    def of(cls, evaluation: Evaluation, build: Build | None, arguments: Mapping[str, Any]) -> BuiltPlan:
        """Bind the build and fill in the call's late numbers."""
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
        """A job that runs it on these inputs, emulated if `emulation` is given, else on a GPU."""
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
    """Evaluate, build and bind. Raises `DoesNotApply`, `KernelFileError`, and what `build` raises."""
    evaluation = evaluate(file, arguments, gpu, choice)
    request = evaluation.build_request()
    built = build(request, isolated=isolated) if request is not None else None
    return built if isinstance(built, BuildFailure) else BuiltPlan.of(evaluation, built, arguments)


def bind_plan(
    evaluation: Evaluation, build: Build | None, late: Sequence[int | float | bool] | None = None
) -> BoundPlan:
    """Bind an evaluation to its build, None where nothing is launched; without `late`, calls fill those numbers in."""
    plan = bind(evaluation, build, evaluation.gpu)
    return plan if build is None or late is None else settle(plan, late)


@dataclass(frozen=True)
class LaunchReport:
    """One launch of a plan, with its kernel's resources and occupancy."""

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
    """The occupancy of a launch."""
    smem = launch.dynamic_smem_bytes + resources.static_smem_bytes
    return records.occupancy(gpu, resources.registers, math.prod(launch.block), smem, resources.barriers)


# -- keys and defaults --


def build_key(request: BuildRequest, toolkit: Toolkit) -> str:
    """The cache key of a request: source, constants, kernels, options, compiler and headers, without its name."""
    unit = assemble(request)
    parts = [RULES_VERSION, unit.text, unit.options, unit.kernels, toolkit.fingerprint]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@lru_cache(maxsize=1)
def default_pool() -> CompilePool:
    """The process's compile pool; its children start with the first isolated build."""
    return CompilePool()


def cache_directory() -> Path:
    """The folder of the build cache."""
    return DEFAULT_CACHE.directory


def cache_size_bytes() -> int:
    """The size of the build cache."""
    return DEFAULT_CACHE.size_bytes()
