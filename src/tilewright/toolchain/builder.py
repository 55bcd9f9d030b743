"""`build`: compiles a request through the build cache, in this process or in a limited child.

`build_plan` goes from a kernel file and a call's arguments to a bound plan.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from tilewright import records
from tilewright.child.envelope import EnvelopeError, message, message_in, unseal
from tilewright.kernel_file import Arguments, Choice, Evaluation, KernelFile, bind, evaluate, settle
from tilewright.records import (
    BoundPlan,
    Build,
    BuildFailure,
    BuildRequest,
    Dim3,
    FailureReason,
    GpuProfile,
)
from tilewright.toolchain.compile import compile_request
from tilewright.toolchain.diagnostics import with_file_name
from tilewright.toolchain.file_cache import FileCache
from tilewright.toolchain.nvrtc import ToolchainError, Toolkit, find_toolkit
from tilewright.toolchain.pool import BuildLimits, CompilePool
from tilewright.toolchain.translation_unit import assemble

# -- the build cache on disk, by content address --

LASTING_FAILURES = frozenset(
    {
        FailureReason.DIAGNOSTICS,
        FailureReason.EXTERNAL,
        FailureReason.DEVICE_STATE,
        FailureReason.DEVICE_CALL,
    }
)


class BuildCache(FileCache):
    """Builds, and failures that would come again, by key."""

    _warned = False

    def get(self, key: str) -> Build | BuildFailure | None:
        """The cached result, or None. A damaged one is removed."""
        content = self.read(f"{key}.build")
        if content is None:
            return None
        try:
            found: Build | BuildFailure = message_in(unseal(content), Build | BuildFailure)
        except EnvelopeError:
            self.remove(f"{key}.build")
            return None
        return found

    def put(self, key: str, result: Build | BuildFailure) -> None:
        """Store a build or a deterministic failure. A cache that cannot be written warns once."""
        if isinstance(result, BuildFailure) and result.reason not in LASTING_FAILURES:
            return
        try:
            self.write(f"{key}.build", message(result))
        except OSError as error:
            if not self._warned:
                self._warned = True
                warnings.warn(
                    f"builds are not cached: {error}; set TILEWRIGHT_CACHE to a writable folder", stacklevel=3
                )


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


def cache_size_bytes() -> int:
    """The size of the build cache."""
    return DEFAULT_CACHE.size_bytes()
