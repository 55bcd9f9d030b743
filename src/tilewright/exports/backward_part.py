"""The kernel for an op's gradients in an exported package: a package within it, and how the two fit together."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.exports.errors import NotExportable
from tilewright.exports.source import Source
from tilewright.exports.variants import Variants

PLACE = "backward"  # of its package within the forward's


@dataclass(frozen=True)
class BackwardPart:
    """A backward and what it is given: for each of its parameters where that comes from, and its place there."""

    source: Source
    variants: Variants
    takes: tuple[tuple[str, int], ...]  # "gradient", "input" or "result" of the forward, and the number of it
    gives: tuple[int, ...]  # the inputs whose gradients its results are
    input_ranks: tuple[int | None, ...]  # of the forward's inputs as both kernels were made for; None: no tensor
    result_ranks: tuple[int, ...]
    leading: tuple[int, ...]  # inputs that may have more dimensions in front, which are laid flat for it

    @staticmethod
    def of(forward: Source, backward: Source, variants: Variants) -> BackwardPart:
        task, made = forward.task, backward.task
        if task is None or made is None or made.derivative is None:
            raise NotExportable(f"{backward.op.name} does not say whose gradients it computes; make it again")
        derivative = made.derivative
        inputs = [one.name for one in forward.op.parameters]
        results = list(forward.op.results)
        gradients = dict(zip(derivative.gradients, derivative.results, strict=True))
        takes: list[tuple[str, int]] = []
        for one in backward.op.parameters:
            if one.name in gradients:
                takes.append(("gradient", results.index(gradients[one.name])))
            elif one.name in inputs:
                takes.append(("input", inputs.index(one.name)))
            else:
                takes.append(("result", results.index(one.name)))
        ranks = {one.name: len(one.dimensions) for one in task.tensors}
        return BackwardPart(
            source=backward,
            variants=variants,
            takes=tuple(takes),
            gives=tuple(inputs.index(name) for name in derivative.by),
            input_ranks=tuple(ranks.get(name) for name in inputs),
            result_ranks=tuple(len(one.shape) for one in task.outputs),
            leading=tuple(inputs.index(name) for name, _ in task.leading),
        )
