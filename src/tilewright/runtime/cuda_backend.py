"""An operation on one CUDA device: file selection, builds, and prepared plans by cache key."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright import toolchain
from tilewright.devices.cuda.executor import CaptureRefused, Executor
from tilewright.devices.cuda.prepared import PreparedPlan
from tilewright.kernel_file import Dispatcher, Evaluation, KernelFile, NoneApplies, Selected, TunedChoices
from tilewright.records import BoundPlan, Build, BuildFailure, BuildRequest
from tilewright.runtime.errors import BuildDuringCapture, BuildFailed

MOST_PREPARED = 2048


@dataclass(frozen=True)
class PreparedCall:
    """A selected file, bound to its build and loaded on the device."""

    selected: Selected
    plan: BoundPlan
    prepared: PreparedPlan


class Builds:
    """Builds by request, kept for the life of an operation, so that a new shape needs no disk access."""

    def __init__(self) -> None:
        self._known: dict[BuildRequest, Build] = {}

    def build(self, evaluation: Evaluation) -> Build | None:
        """The build from memory, the disk cache or the compiler; None where nothing is launched."""
        request = evaluation.build_request()
        if request is None:
            return None
        known = self._known.get(request)
        if known is None:
            outcome = toolchain.build(request, isolated=False)
            if isinstance(outcome, BuildFailure):
                raise BuildFailed(evaluation.file.name, outcome)
            known = self._known[request] = outcome
        return known


class CudaBackend:
    """The files of one op on one GPU of this process."""

    def __init__(self, files: Sequence[KernelFile], tuned: TunedChoices, executor: Executor, builds: Builds) -> None:
        op = files[0].plan.op
        self.executor = executor
        self.dispatcher = Dispatcher(files, executor.profile, tuned)
        self._builds = builds
        self._inputs = tuple(p.name for p in op.tensors)
        self._results = op.results
        self._ready: OrderedDict[Hashable, tuple[BoundPlan, PreparedPlan]] = OrderedDict()
        self._lock = threading.Lock()

    def prepare(self, arguments: Mapping[str, Any]) -> PreparedCall | NoneApplies:
        """Select a file for these arguments, build, bind and load it; all cached."""
        selected = self.dispatcher.select(arguments)
        if isinstance(selected, NoneApplies):
            return selected
        key = (self.dispatcher.key(arguments), selected.index, tuple(selected.evaluation.choice.items()))
        with self._lock:  # one build per key, however many threads need it
            known = self._ready.get(key)
            if known is None:
                known = self._ready[key] = self._make(selected.evaluation)
            self._ready.move_to_end(key)
            while len(self._ready) > MOST_PREPARED:
                self._ready.popitem(last=False)
        return PreparedCall(selected, *known)

    def _make(self, evaluation: Evaluation) -> tuple[BoundPlan, PreparedPlan]:
        op = evaluation.file.plan.op.name
        with self.executor.memory.here():
            if self.executor.memory.is_capturing():
                raise BuildDuringCapture(_CAPTURE.format(op=op, file=evaluation.file.name))
        build = self._builds.build(evaluation)
        plan = toolchain.bind_plan(evaluation, build)
        cubin = build.cubin if build is not None else b""
        try:
            return plan, self.executor.prepare(cubin, plan, self._inputs, self._results)
        except CaptureRefused as error:
            raise BuildDuringCapture(_CAPTURE.format(op=op, file=evaluation.file.name)) from error


_CAPTURE = (
    "{op}: {file} is not prepared for these shapes, and nothing is built or loaded while a CUDA graph is captured; "
    "call {op}.prepare(...) or run it once with the same shapes before the capture"
)
