"""`Stopwatch`: the time of a task's candidates, measured on a GPU or else modelled from emulated counts."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property

from tilewright.child.process import TICK_S, check_stop
from tilewright.devices.protocol import Device
from tilewright.kernel_file import Choice, KernelFile
from tilewright.lint import lint_plan
from tilewright.measure.emulated_counts import NotCounted, count_plan
from tilewright.measure.evidence import evidence_text, profile, profile_text, static_text
from tilewright.measure.floor import floor_us
from tilewright.measure.gpu_timing import (
    GpuFault,
    TimingOptions,
    compile_baselines,
    measure_on_gpu,
    time_candidate,
)
from tilewright.measure.performance_model import PlanModel, model_plan
from tilewright.measure.preparation import NotPrepared, prepare
from tilewright.records import (
    USUAL_BASELINES,
    Completed,
    GpuProfile,
    JudgedAnswer,
    LintFinding,
    Measured,
    Measurement,
    Task,
)
from tilewright.reference import AnyReference, Reference, ReferenceLimits, ReferenceProblem

_KEPT_MODELS = 32

Say = Callable[[str], None]
_Key = tuple[str, tuple[tuple[str, int | bool], ...]]  # (the file's identity, the choice)


class Stopwatch:
    """The stopwatch of one task. `close` ends only what was started here, not the caller's devices and reference.

    Without a reference the roofline floor counts bytes alone, and there are no baselines. `baselines` are names of
    `measure.baselines.BASELINES`; `against` is "module:function", a further baseline. `gpu_reference` is the reference
    on the GPU's machine; without one it is started here. `turn` is entered while timing, where the GPU is shared.
    `model_eager` gives the modelled time of the reference in eager PyTorch, and how many kernels that launches.
    """

    def __init__(
        self,
        task: Task,
        reference: AnyReference | None,
        *,
        emulator: Device,
        gpu: Device | None = None,
        gpu_reference: AnyReference | None = None,
        baselines: tuple[str, ...] = USUAL_BASELINES,
        against: str = "",
        say: Say = lambda _: None,
        turn: Callable[[], AbstractContextManager[None]] = nullcontext,
        model_eager: Callable[[Task, AnyReference], tuple[float, int]] | None = None,
    ) -> None:
        self.task = task
        self._reference = reference
        self._emulator = emulator
        self._gpu = gpu
        self._gpu_reference = gpu_reference
        self._options = TimingOptions(baselines, against)
        self._say = say
        self.turn = turn
        self._model_eager = model_eager
        self._baselines: Reference | None = None
        self._compiling: threading.Thread | None = None
        self._closing = threading.Event()
        self._models: dict[_Key, PlanModel] = {}
        self._measured: dict[_Key, Measured] = {}
        self._profiles: dict[_Key, Completed | str] = {}
        self.unmeasured = ""  # why the last call of `measure` gave none

    def __enter__(self) -> Stopwatch:
        """Start to compile the baselines and to compute the floor, in the background."""
        if self._gpu is not None and self._gpu_reference is None and self._options.baselines:
            work = (self.task, self._gpu, self._baseline_reference(), self._options)
            self._compiling = threading.Thread(target=compile_baselines, args=work, daemon=True)
            self._compiling.start()
            threading.Thread(target=self._compute_floor, daemon=True).start()
        return self

    def _compute_floor(self) -> None:
        with contextlib.suppress(Exception):  # the first use of the floor meets the same error
            self.floor_us  # noqa: B018

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._closing.set()
        if self._compiling is not None:
            self._compiling.join()
        if self._baselines is not None:
            self._baselines.close()
            self._baselines = None

    @property
    def profile(self) -> GpuProfile:
        """The GPU that times refer to."""
        return self._gpu.profile if self._gpu is not None else self.task.profile

    @cached_property
    def floor_us(self) -> float:
        return floor_us(self.task, self._reference)

    @cached_property
    def _eager(self) -> tuple[float, int]:
        """The modelled time of eager PyTorch, and its kernels; zeros where it is measured or not known."""
        if self._model_eager is not None and self._reference is not None and self._gpu is None:
            with contextlib.suppress(ReferenceProblem, RuntimeError):
                return self._model_eager(self.task, self._reference)
        return 0.0, 0

    def measure(
        self,
        file: KernelFile,
        choice: Choice | None = None,
        answer: JudgedAnswer | None = None,
        best_us: float | None = None,
    ) -> Measurement | None:
        """The time at the task's sizes; None where there is none, with the reason in `unmeasured` and through `say`.

        On a GPU, `answer` is the verified output: the timed calls use its inputs and must return the same. A candidate
        far slower than `best_us` is timed briefly and without baselines.
        """
        try:
            if self._gpu is None:
                return self.model(file, choice).modelled
            prepared = prepare(file, self.task, choice, gpu=self._gpu.profile)
            floor_us, baselines = self.floor_us, self._compiled_baselines()
            options = replace(self._options, answer=answer, best_us=best_us)
            with self.turn():
                made = measure_on_gpu(prepared, self.task, self._gpu, baselines, floor_us, options, self._say)
            self._measured[_key(file, choice)] = made
            return made
        except (NotPrepared, NotCounted, GpuFault) as problem:
            self._say(f"not measured: {problem}")
            self.unmeasured = problem.short if isinstance(problem, NotCounted) else str(problem)
            return None

    @property
    def scatters(self) -> bool:
        """Whether times vary from run to run: measured times do, modelled ones do not."""
        return self._gpu is not None

    @property
    def is_far(self) -> bool:
        """Whether the GPU is on another machine, where others wait for it."""
        return self._gpu is not None and self._gpu_reference is not None

    def modelled_us(self, file: KernelFile, choice: Choice | None) -> float | None:
        """The modelled time, with or without a GPU; None where the candidate cannot be emulated."""
        with contextlib.suppress(NotPrepared, NotCounted):
            return self.model(file, choice).modelled.time_us
        return None

    def times_us(self, file: KernelFile, choice: Choice | None, runs: int) -> tuple[float, ...] | None:
        """Quick times to compare choices by, without baselines; None where there are none. A model gives one."""
        try:
            if self._gpu is None:
                return (self.model(file, choice).modelled.time_us,)
            prepared = prepare(file, self.task, choice, gpu=self._gpu.profile)
            return time_candidate(prepared, self.task, self._gpu, runs, digests=False).run_us
        except (NotPrepared, NotCounted, GpuFault):
            return None

    def evidence(self, file: KernelFile, choice: Choice | None = None) -> str:
        """Where the time goes, as text for whoever improves the file."""
        measured = self._measured.get(_key(file, choice))
        try:
            return self._counters(file, choice) + evidence_text(self.model(file, choice), measured)
        except NotPrepared as problem:
            return f"Nothing is known of it: {problem}"
        except NotCounted as problem:
            known = static_text(prepare(file, self.task, choice), str(problem), measured)
            return self._counters(file, choice) + known

    def lint(self, file: KernelFile) -> tuple[LintFinding, ...]:
        """Lint findings at the task's sizes; none where the file does not build there."""
        try:
            return lint_plan(prepare(file, self.task, None), self.task.arguments(), other_sizes=False)[0]
        except NotPrepared:
            return ()

    def profiled(self, file: KernelFile, choice: Choice | None = None) -> Completed | str:
        """Hardware counters, or why there are none. Raises `NotPrepared`."""
        if self._gpu is None:
            return "there is no GPU"
        key = _key(file, choice)
        if key not in self._profiles:
            self._say("profiling")
            prepared = prepare(file, self.task, choice, gpu=self._gpu.profile)
            self._profiles[key] = profile(prepared, self.task, self._gpu)
        return self._profiles[key]

    def _counters(self, file: KernelFile, choice: Choice | None) -> str:
        if self._gpu is None:
            return ""
        done = self.profiled(file, choice)
        return f"No hardware counters: {done}.\n\n" if isinstance(done, str) else f"{profile_text(done, file.text)}\n\n"

    def model(self, file: KernelFile, choice: Choice | None = None) -> PlanModel:
        """The candidate in the performance model. Raises `NotPrepared`, `NotCounted`."""
        key = _key(file, choice)
        if key not in self._models:
            counted = count_plan(file, self.task, choice, self._emulator)
            while len(self._models) >= _KEPT_MODELS:
                del self._models[next(iter(self._models))]
            made, (eager_us, kernels) = model_plan(counted, self.task, self.floor_us), self._eager
            modelled = replace(made.modelled, eager_us=eager_us, eager_kernels=kernels)
            self._models[key] = replace(made, modelled=modelled)
        return self._models[key]

    def _compiled_baselines(self) -> AnyReference:
        if self._compiling is not None and self._compiling.is_alive():
            self._say("compiling the baselines")
            while self._compiling.is_alive():
                check_stop()
                self._compiling.join(TICK_S)
        return self._baseline_reference()

    def _baseline_reference(self) -> AnyReference:
        """The reference on the GPU's machine: the caller's, or one in a child that may use the GPU."""
        if self._gpu_reference is not None:
            return self._gpu_reference
        if self._baselines is None:
            limits = ReferenceLimits.on_gpu()
            folder = os.getcwd() if self._options.against else ""
            source, function = self.task.reference, self.task.function
            self._baselines = Reference(source, function, limits=limits, folder=folder, interrupt=self._closing.is_set)
        return self._baselines


def _key(file: KernelFile, choice: Choice | None) -> _Key:
    return file.identity, tuple(sorted((choice or {}).items()))
