"""Tuned choices, stored beside a kernel file: the fastest tune values per GPU and shapes.

A record applies to calls of the same file with the same tensors, on the same or a similar GPU (by `GpuIdentity`). The
nearest record wins, by the log-distance of sizes plus a penalty for a different GPU. `evaluate` checks that its choice
still satisfies the needs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tilewright.kernel_file.calls import Arguments
from tilewright.kernel_file.compiled_plan import KernelFile
from tilewright.kernel_file.evaluate import Evaluation, Refused, flatten_leading, try_evaluate
from tilewright.kernel_file.problems import Problem
from tilewright.kernel_file.search import Choice, ChoiceError
from tilewright.records import (
    PROFILES,
    Attempt,
    DType,
    GpuIdentity,
    GpuLikeness,
    GpuProfile,
    Measured,
    RecordError,
    Task,
    TensorSpec,
    from_json,
    tuned_path,
)

# Penalties for another GPU or another 16-bit float, in octaves. Also in host/plan.hpp.
GPU_OCTAVES = {GpuLikeness.SAME: 0.0, GpuLikeness.SIMILAR: 1.0, GpuLikeness.RELATED: 3.0}
DTYPE_OCTAVES = 0.5
_ALIKE = ({DType.F16, DType.BF16},)

Evaluate = Callable[[KernelFile, Arguments, GpuProfile, Choice | None], Evaluation | Refused]


class BadTunedRecord(RecordError):
    """The file beside a kernel file is no record of tuned choices."""


@dataclass(frozen=True)
class TunedTensor:
    name: str
    dtype: DType
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.dtype.value}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class TunedChoice:
    """One tuned choice and where it was found. Old records have only the GPU's name."""

    LEFT_OUT: ClassVar[tuple[str, ...]] = ("cc", "sms", "emulated")

    file: str  # identity of the kernel file
    gpu: str  # as the driver or `PROFILES` names it
    tensors: tuple[TunedTensor, ...]
    choice: tuple[tuple[str, int | bool], ...]
    cc: int = 0
    sms: int = 0
    emulated: bool = False  # by modelled times

    @property
    def identity(self) -> GpuIdentity:
        return GpuIdentity.named(self.gpu, self.cc, self.sms)

    @property
    def words(self) -> str:
        """Where it was found: `H200 (emulated) at x f32[4096]`."""
        return f"{self.gpu}{' (emulated)' if self.emulated else ''} at {', '.join(map(str, self.tensors))}"


@dataclass(frozen=True)
class NearChoice:
    """A tuned choice with its distance from a call."""

    winner: TunedChoice
    likeness: GpuLikeness
    octaves: float

    @property
    def choice(self) -> dict[str, int | bool]:
        return dict(self.winner.choice)

    @property
    def distance(self) -> float:
        return self.octaves + GPU_OCTAVES[self.likeness]

    def why(self, gpu: GpuProfile) -> str:
        """The explanation for `Operation.explain`."""
        near = "as in this call" if self.octaves == 0 else "nearest to this call"
        other = "" if self.likeness is GpuLikeness.SAME else f"; {gpu.name} is {self.likeness.value}"
        return f"tuned on {self.winner.words}, {near}{other}"


@dataclass(frozen=True)
class TunedChoices:
    """Tuned choices of one or several files, newest last."""

    entries: tuple[TunedChoice, ...] = ()

    def nearest(self, file: KernelFile, gpu: GpuProfile, arguments: Arguments) -> tuple[NearChoice, ...]:
        """The applicable records, nearest first, each choice once; ties prefer measured over emulated, then newer."""
        identity, tensors = GpuIdentity.of(gpu), flattened_tensors(file, tuned_tensors(arguments))
        near: list[tuple[float, bool, int, NearChoice]] = []
        for age, entry in enumerate(self.entries):
            if entry.file != file.identity or (likeness := entry.identity.likeness(identity)) is None:
                continue
            octaves = _distance(tensors, flattened_tensors(file, entry.tensors))
            if octaves is not None:
                found = NearChoice(entry, likeness, octaves)
                near.append((found.distance, entry.emulated, -age, found))
        ordered = sorted(near, key=lambda item: item[:3])
        once: dict[tuple[tuple[str, int | bool], ...], NearChoice] = {}
        for *_, found in ordered:
            once.setdefault(found.winner.choice, found)
        return tuple(once.values())

    def why_first(self, file: KernelFile, gpu: GpuProfile, arguments: Arguments) -> str:
        """Why a call uses the file's first valid choices instead of a record."""
        if not file.compiled.tunes:
            return ""
        own = [entry for entry in self.entries if entry.file == file.identity]
        if not own:
            return f"first choices: {'tuned only with another text of the file' if self.entries else 'never tuned'}"
        identity = GpuIdentity.of(gpu)
        alike = [entry for entry in own if entry.identity.likeness(identity) is not None]
        if not alike:
            others = dict.fromkeys(
                f"{entry.gpu} ({entry.identity.arch or 'of an unknown architecture'})" for entry in own
            )
            return f"first choices: tuned only for {', '.join(others)}; this is {gpu.name} ({identity.arch})"
        near = self.nearest(file, gpu, arguments)
        if not near:
            return f"first choices: tuned only for other dtypes or ranks, on {alike[-1].words}"
        return f"first choices: what was tuned on {near[0].winner.words} does not hold here"

    def with_choice(
        self,
        file: KernelFile,
        gpu: GpuProfile | str,
        arguments: Arguments,
        choice: Iterable[tuple[str, int | bool]],
        *,
        cc: int = 0,
        emulated: bool = False,
    ) -> TunedChoices:
        """Add a record, replacing one for the same call on the same GPU (given as a profile, or name and `cc`)."""
        tensors, picked = tuned_tensors(arguments), tuple(choice)
        if isinstance(gpu, GpuProfile):
            entry = TunedChoice(file.identity, gpu.name, tensors, picked, gpu.cc, gpu.sms, emulated)
        else:
            known = GpuIdentity.named(gpu, cc)
            entry = TunedChoice(file.identity, gpu, tensors, picked, known.cc, known.sms, emulated)
        where = (entry.file, entry.identity, entry.tensors)
        kept = tuple(old for old in self.entries if (old.file, old.identity, old.tensors) != where)
        return TunedChoices((*kept, entry))

    def with_winner_of(self, file: KernelFile, task: Task, attempt: Attempt) -> TunedChoices:
        """Add the autotuner's choice of an attempt, for the GPU it was measured or emulated on."""
        if attempt.tune is None or not attempt.tune.choice:
            return self
        if isinstance(attempt.measurement, Measured):
            # The driver's name of the GPU; its compute capability is the target's.
            name, cc = attempt.measurement.gpu, task.profile.cc
            return self.with_choice(file, name, task.arguments(), attempt.tune.choice, cc=cc)
        return self.with_choice(file, PROFILES[task.gpu], task.arguments(), attempt.tune.choice, emulated=True)

    def joined(self, other: TunedChoices) -> TunedChoices:
        """The records of both."""
        return TunedChoices(self.entries + other.entries)

    @classmethod
    def load(cls, kernel_file: Path) -> TunedChoices:
        """The records beside a kernel file, if any. Raises `BadTunedRecord`."""
        path = tuned_path(kernel_file)
        try:
            text = path.read_text("utf-8")
        except FileNotFoundError:
            return cls()
        try:
            return from_json(cls, json.loads(text))
        except (RecordError, ValueError) as error:
            raise BadTunedRecord(f"{path} is not a record of tuned choices: {error}; delete it to tune again") from None


def evaluate_tuned(
    file: KernelFile,
    arguments: Arguments,
    gpu: GpuProfile,
    tuned: TunedChoices,
    evaluate: Evaluate = try_evaluate,
) -> tuple[Evaluation | Refused, NearChoice | None]:
    """Evaluate with the nearest valid record, which is returned too; else with the first valid choices."""
    for near in tuned.nearest(file, gpu, arguments):
        try:
            outcome = evaluate(file, arguments, gpu, near.choice)
        except ChoiceError:
            continue  # not a choice of the file as it is now
        if isinstance(outcome, Evaluation):
            return outcome, near
    return evaluate(file, arguments, gpu, None), None


def tuned_tensors(arguments: Arguments) -> tuple[TunedTensor, ...]:
    return tuple(
        TunedTensor(name, value.dtype, value.shape)
        for name, value in sorted(arguments.items())
        if isinstance(value, TensorSpec)
    )


def flattened_tensors(file: KernelFile, tensors: tuple[TunedTensor, ...]) -> tuple[TunedTensor, ...]:
    """The tensors with flattened leading dimensions, for comparison of sizes."""
    if file.compiled.lead is None:
        return tensors
    regular: dict[str, TensorSpec | None] = {one.name: None for one in file.plan.op.tensors}
    regular |= {one.name: TensorSpec.contiguous(one.dtype, one.shape) for one in tensors}
    seen = flatten_leading(file, regular)
    return tensors if isinstance(seen, Problem) else tuned_tensors(seen.arguments)


def _distance(one: tuple[TunedTensor, ...], other: tuple[TunedTensor, ...]) -> float | None:
    """The distance of two calls in octaves, summed over all sizes; None where names, ranks or dtypes differ."""
    if len(one) != len(other):
        return None
    total = 0.0
    for a, b in zip(one, other, strict=True):
        if (a.name, len(a.shape)) != (b.name, len(b.shape)):
            return None
        if a.dtype != b.dtype:
            if not any({a.dtype, b.dtype} <= alike for alike in _ALIKE):
                return None
            total += DTYPE_OCTAVES
        total += sum(abs(math.log2(m + 1) - math.log2(n + 1)) for m, n in zip(a.shape, b.shape, strict=True))
    return total
