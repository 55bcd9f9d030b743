"""`build`: a request to a build, through the cache, in this process or in a limited child.

`build_plan` is the whole way from a kernel file and the arguments of a call to what a device runs.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from tilewright import records
from tilewright.kernel_file import Arguments, Choice, Evaluation, KernelFile, bind, evaluate, settle
from tilewright.records import BoundPlan, Build, BuildFailure, BuildRequest, Dim3, GpuProfile
from tilewright.toolchain.cache import BuildCache
from tilewright.toolchain.compile import compile_request
from tilewright.toolchain.diagnostics import renamed
from tilewright.toolchain.errors import ToolchainError
from tilewright.toolchain.pool import BuildLimits, CompilePool
from tilewright.toolchain.toolkit import Toolkit, find_toolkit
from tilewright.toolchain.translation_unit import assemble

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
        return replace(result, warnings=renamed(result.warnings, name)) if result.warnings else result
    return replace(result, diagnostics=renamed(result.diagnostics, name))
