"""The tuner's winners, kept beside a kernel file: for a GPU and a shape, the choice that was fastest.

A record is found by the file's identity, the GPU's name, dtypes and ranks; of those the nearest shape wins, by the
distance of the sizes' logarithms. Whether the choice still satisfies the file's needs is for `evaluate` to say.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tilewright.kernel_file.calls import Arguments
from tilewright.kernel_file.compiled_plan import KernelFile
from tilewright.records import DType, RecordError, TensorSpec, from_json


@dataclass(frozen=True)
class TunedTensor:
    name: str
    dtype: DType
    shape: tuple[int, ...]


@dataclass(frozen=True)
class TunedChoice:
    """One winner: where it was found, and what it was."""

    file: str  # identity of the kernel file
    gpu: str
    tensors: tuple[TunedTensor, ...]
    choice: tuple[tuple[str, int | bool], ...]


@dataclass(frozen=True)
class TunedChoices:
    """Winners of one or several files, newest last."""

    entries: tuple[TunedChoice, ...] = ()

    def nearest(self, file: KernelFile, gpu: str, arguments: Arguments) -> tuple[dict[str, int | bool], ...]:
        """The recorded choices for calls like this one, nearest shape first, each choice once."""
        tensors = tuned_tensors(arguments)
        near = [
            (distance, -age, entry.choice)
            for age, entry in enumerate(self.entries)
            if entry.file == file.identity
            and entry.gpu == gpu
            and (distance := _distance(tensors, entry.tensors)) is not None
        ]
        ordered = sorted(near, key=lambda item: item[:2])
        return tuple(dict(choice) for choice in dict.fromkeys(choice for _, _, choice in ordered))

    def with_choice(
        self, file: KernelFile, gpu: str, arguments: Arguments, choice: Iterable[tuple[str, int | bool]]
    ) -> TunedChoices:
        """These winners and one more; it replaces an earlier one for the same call."""
        entry = TunedChoice(file.identity, gpu, tuned_tensors(arguments), tuple(choice))
        where = (entry.file, entry.gpu, entry.tensors)
        kept = tuple(old for old in self.entries if (old.file, old.gpu, old.tensors) != where)
        return TunedChoices((*kept, entry))

    def joined(self, other: TunedChoices) -> TunedChoices:
        """The winners of both, for an op of several files."""
        return TunedChoices(self.entries + other.entries)

    @classmethod
    def load(cls, kernel_file: Path) -> TunedChoices:
        """What is recorded beside a kernel file; nothing where there is no record.

        Raises `RecordError` for a file that is not such a record.
        """
        path = tuned_path(kernel_file)
        try:
            text = path.read_text("utf-8")
        except FileNotFoundError:
            return cls()
        try:
            return from_json(cls, json.loads(text))
        except (RecordError, ValueError) as error:
            raise RecordError(f"{path} is not a record of tuned choices: {error}; delete it to tune again") from None


def tuned_path(kernel_file: Path) -> Path:
    """`softmax.cu` -> `softmax.cu.tuned.json`."""
    return kernel_file.with_name(kernel_file.name + ".tuned.json")


def tuned_tensors(arguments: Arguments) -> tuple[TunedTensor, ...]:
    return tuple(
        TunedTensor(name, value.dtype, value.shape)
        for name, value in sorted(arguments.items())
        if isinstance(value, TensorSpec)
    )


def _distance(one: tuple[TunedTensor, ...], other: tuple[TunedTensor, ...]) -> float | None:
    """How far apart two calls are, in octaves summed over all sizes; None where they are not alike."""
    if len(one) != len(other):
        return None
    total = 0.0
    for a, b in zip(one, other, strict=True):
        if (a.name, a.dtype, len(a.shape)) != (b.name, b.dtype, len(b.shape)):
            return None
        total += sum(abs(math.log2(m + 1) - math.log2(n + 1)) for m, n in zip(a.shape, b.shape, strict=True))
    return total
