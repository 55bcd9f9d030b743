"""The system text: the rules, the file's contract, advice for the GPU and the kind of work, and the task.

It depends on the task alone (and on whether a GPU is at hand), so it is the same for every question of a run and is
read from the provider's cache after the first.
"""

from __future__ import annotations

import math
import re

from tilewright.kernel_file import contract
from tilewright.prompts.rendering import render, render_with_idioms
from tilewright.prompts.task_text import gpu_text, task_text
from tilewright.records import DType, Kind, Task

_PRODUCT_KINDS = (Kind.MATMUL, Kind.CONVOLUTION, Kind.ATTENTION)
_CUTE_WORD = re.compile(r"\bcute\b|\bcutlass\b", re.IGNORECASE)
_HALF = (DType.F16, DType.BF16)
_LARGE = 1024  # of each size of a product, from which CuTe's tiles pay
_TILE = 128  # rows and columns of the tile that large products are cut into

# What the contract says of instructions that no emulator runs, and what stands there without it.
NOT_EMULATED = (
    ("tick, t, y, eps)", "tick, y, eps)"),
    ("cluster(2), cooperative, pdl", "cooperative"),
    (
        " (may overlap the launch just before it; the kernel must execute griddepcontrol.wait before it reads that "
        "launch's results)",
        "",
    ),
    ("Options of tiled: box shape stride step swizzle fill l2. ", ""),
    (", FLT_MAX and CUtensorMap", " and FLT_MAX"),
    (" for TMA take the CUtensorMap parameter and call the SM90_TMA_LOAD copy functions on its address;", ""),
)
MAP_LINE = re.compile(r"^//! map .*\n", re.MULTILINE)


def system_text(task: Task, emulated_only: bool = False) -> str:
    """What a model is told once per task. `emulated_only`: no GPU is at hand, so only what the emulator runs counts."""
    products = task.kind in _PRODUCT_KINDS
    tiles = product_tiles(task) if products else 0
    advice, idioms = render_with_idioms(
        f"kinds/{task.kind.value}",
        half=any(one.dtype in _HALF for one in task.tensors),
        per_row=any(one.shape for one in task.outputs),
        precision=task.precision.value,
        tiles=tiles,
        sms=task.profile.sms,
        cute=names_cute(task),
    )
    return render(
        "system",
        emulated_only=emulated_only,
        contract=_contract(emulated_only),
        gpu=gpu_text(task.profile),
        family=render(
            f"families/{family_of(task.profile.cc)}",
            emulated_only=emulated_only,
            products=products,
            large=products and tiles >= task.profile.sms,
        ),
        kind_name=task.kind.value,
        kind=advice,
        idioms=idioms,
        cute=cute_text(task, emulated_only) if wants_cute(task) else "",
        task=task_text(task),
    )


def names_cute(task: Task) -> bool:
    return mentions_cute(task.words) or mentions_cute(task.reference)


def wants_cute(task: Task) -> bool:
    """Whether CuTe is worth its place: for large tiles of matrices, or where the request or the reference names it."""
    if names_cute(task):
        return True
    return task.kind in _PRODUCT_KINDS and min(product_sizes(task), default=0) >= _LARGE


def product_sizes(task: Task) -> tuple[int, ...]:
    """The sizes of the task's product that CuTe's worth hangs on; () where they cannot be told from the inputs."""
    shapes = [spec.shape for spec in task.specs().values()]
    if task.kind is Kind.CONVOLUTION:
        wide = [shape for shape in shapes if len(shape) >= 3]  # the input, then the weights
        channels = max(wide[1][0], 1) if len(wide) > 1 else 0
        return (_results(task) // channels, channels, math.prod(wide[1]) // channels) if channels else ()
    matrices = sorted((shape for shape in shapes if len(shape) >= 2), key=math.prod, reverse=True)
    if task.kind is Kind.ATTENTION:
        return matrices[0][-2:-1] if matrices else ()  # the sequence: the depth of a head is always small
    return tuple(size for shape in matrices[:2] for size in shape[-2:])


def product_tiles(task: Task) -> int:
    """Tiles of 128 x 128 that the largest result has."""
    return math.ceil(_results(task) / (_TILE * _TILE))


def _results(task: Task) -> int:
    return max((math.prod(spec.shape) for spec in task.output_specs().values()), default=0)


def _contract(emulated_only: bool) -> str:
    text = contract()
    if emulated_only:
        text = MAP_LINE.sub("", text)
        for said, instead in NOT_EMULATED:
            text = text.replace(said, instead)
    return text


def mentions_cute(text: str) -> bool:
    return _CUTE_WORD.search(text) is not None


def cute_text(task: Task, emulated_only: bool) -> str:
    """How to write CuTe here, with a pattern that the device can run."""
    if task.kind not in _PRODUCT_KINDS:
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
