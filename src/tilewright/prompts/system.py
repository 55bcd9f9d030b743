"""The system text: the rules, the file's contract, advice for the GPU and the kind of work, and the task.

It depends on the task alone (and on whether a GPU is at hand), so it is the same for every question of a run and is
read from the provider's cache after the first.
"""

from __future__ import annotations

import re

from tilewright.kernel_file import contract
from tilewright.prompts.rendering import render, render_with_idioms
from tilewright.prompts.task_text import gpu_text, task_text
from tilewright.records import DType, Kind, Task

_CUTE_KINDS = (Kind.MATMUL, Kind.CONVOLUTION, Kind.ATTENTION)
_CUTE_WORD = re.compile(r"\bcute\b|\bcutlass\b", re.IGNORECASE)
_HALF = (DType.F16, DType.BF16)


def system_text(task: Task, emulated_only: bool = False) -> str:
    """What a model is told once per task. `emulated_only`: no GPU is at hand, so only what the emulator runs counts."""
    advice, idioms = render_with_idioms(
        f"kinds/{task.kind.value}",
        half=any(one.dtype in _HALF for one in task.tensors),
        per_row=any(one.shape for one in task.outputs),
        precision=task.precision.value,
    )
    return render(
        "system",
        emulated_only=emulated_only,
        contract=contract(),
        gpu=gpu_text(task.profile),
        family=render(f"families/{family_of(task.profile.cc)}", emulated_only=emulated_only),
        kind_name=task.kind.value,
        kind=advice,
        idioms=idioms,
        cute=cute_text(task, emulated_only) if wants_cute(task) else "",
        task=task_text(task),
    )


def wants_cute(task: Task) -> bool:
    """Whether CuTe is worth its place: for tiles of matrices, or where the request names it."""
    return task.kind in _CUTE_KINDS or mentions_cute(task.words)


def mentions_cute(text: str) -> bool:
    return _CUTE_WORD.search(text) is not None


def cute_text(task: Task, emulated_only: bool) -> str:
    """How to write CuTe here, with a pattern that the device can run."""
    if task.kind not in _CUTE_KINDS:
        name = "cute_rows"
    elif task.profile.cc == 90 and not emulated_only:
        name = "cute_sm90"
    else:
        name = "cute_sm80"
    return render("cute", idioms=(name,))


def family_of(cc: int) -> str:
    """The advice file of a compute capability."""
    if cc >= 120:
        return "sm_120a"
    if cc >= 100:
        return "sm_100a"
    if cc >= 90:
        return "sm_90a"
    if cc > 80:
        return "sm_86"
    return "sm_80" if cc == 80 else "sm_75"
