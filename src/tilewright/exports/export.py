"""`export`: a source in one of three forms, written to a folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from tilewright import __version__
from tilewright.exports.backward_part import BackwardPart
from tilewright.exports.cuda_project import write_cuda
from tilewright.exports.errors import NotExportable
from tilewright.exports.hub_project import HubChoices, write_hub
from tilewright.exports.source import Source, check_words, checked_name
from tilewright.exports.torch_package import write_torch
from tilewright.exports.variants import Say, Variants, find_variants
from tilewright.exports.writing import Folder, check_target
from tilewright.records import PROFILES, TensorSpec, to_json


class Target(str, Enum):
    TORCH = "torch"
    HUB = "hub"
    CUDA = "cuda"


@dataclass(frozen=True)
class Exported:
    """What was written, and what is worth knowing of it."""

    target: Target
    folder: str
    name: str
    standing: str
    archs: tuple[str, ...]
    sets: int  # of constants that were built
    files: int
    bytes: int
    notes: tuple[str, ...]


def export(
    source: Source,
    target: Target,
    output: Path,
    name: str = "",
    archs: Sequence[str] = (),
    say: Say = lambda text: None,
    choices: HubChoices | None = None,
) -> Exported:
    """Write `source` to the folder `output`; raises `NotExportable`, or what building raises."""
    name = checked_name(name or source.op.name)
    check_target(output)
    check_words(source)
    if not any(not one.optional for one in source.op.tensors):
        raise NotExportable(f"{name} takes no tensor, so nothing says on which GPU it would run")
    if not source.calls:
        raise NotExportable("nothing says for which shapes to build; give --shape for every tensor")
    variants = find_variants(source.files, source.tuned, source.calls, archs or (PROFILES[source.gpu].arch,), say)
    folder = Folder()
    say("writing the export")
    match target:
        case Target.TORCH:
            backward = _built_backward(source, archs, say)
            notes = write_torch(source, variants, name, folder, backward)
        case Target.CUDA:
            notes = write_cuda(source, variants, name, folder)
        case Target.HUB:
            notes = write_hub(source, variants, name, folder, choices)
    if source.backward is not None:
        notes.append(_backward_note(source.backward, target))
    if source.standing.value != "verified":
        notes.insert(0, f"it is {source.standing.words}")
    if source.guessed:
        shown = ", ".join(f"{key} {value}" for key, value in source.calls[0].items() if isinstance(value, TensorSpec))
        notes.append(f"the shapes were guessed: {shown}; give --shape for every tensor")
    if variants.left_out:
        notes.append(
            f"{variants.left_out} further sets of constants came up and were not built; name them with --shape"
        )
    folder.write(output, _record(source, target, name, variants))
    size = sum(map(len, folder.files.values()))
    sets, files = len(variants.modules), len(folder.files)
    standing = source.standing.value
    return Exported(target, str(output), name, standing, variants.archs, sets, files, size, tuple(notes))


def _built_backward(source: Source, archs: Sequence[str], say: Say) -> BackwardPart | None:
    """The kernel for the gradients, built for the same architectures."""
    if source.backward is None:
        return None
    found = source.backward
    variants = find_variants(found.files, found.tuned, found.calls, archs or (PROFILES[source.gpu].arch,), say)
    return BackwardPart.of(source, found, variants)


def _backward_note(backward: Source, target: Target) -> str:
    name = backward.op.name
    run = backward.provenance.run if backward.provenance is not None else name
    match target:
        case Target.TORCH:
            return f"gradients are computed by {name}, which is {backward.standing.words}"
        case Target.HUB:
            return f"{name}, the kernel for its gradients, is not carried: gradients are the reference's"
        case Target.CUDA:
            return f"{name}, the kernel for its gradients, is a function of its own: tilewright export {run} --to cuda"


def _record(source: Source, target: Target, name: str, variants: Variants) -> dict[str, Any]:
    return {
        "to": target.value,
        "name": name,
        "op": source.op.name,
        "standing": source.standing.value,
        "kernels": {file.name: file.identity for file in source.files},
        "archs": list(variants.archs),
        "licence": source.licence,
        "tilewright": __version__,
        "provenance": to_json(source.provenance) if source.provenance is not None else None,
    }
