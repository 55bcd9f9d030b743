"""The two texts of a question: the system text, once per run, and the question of one attempt.

The system text is the rules, the file's contract, advice for the GPU and the kind of work, and the task. It depends on
the task alone (and on whether a GPU is at hand), so it is the same for every question of a run and is read from the
provider's cache after the first. The question is what was tried, the file at hand, what is wrong with it or how fast it
is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.kernel_file import contract
from tilewright.prompts.history import history_text, standing_text
from tilewright.prompts.rendering import render, render_with_idioms
from tilewright.prompts.task_text import PRODUCT_KINDS, gpu_text, task_text
from tilewright.prompts.verdict_text import verdict_text
from tilewright.records import (
    KIB,
    Attempt,
    Declined,
    DType,
    Kind,
    LintFinding,
    Modelled,
    Rejected,
    Severity,
    Situation,
    Stage,
    Task,
    Unsupported,
)

_CUTE_WORD = re.compile(r"\bcute\b|\bcutlass\b", re.IGNORECASE)
_HALF = (DType.F16, DType.BF16)
_LARGE = 1024  # of each size of a product, from which CuTe's tiles pay
_LITTLE = 1.08  # of what the model gives the least traffic: hardly anything is left to gain
_HOPPER = 90
_ROWS_PER_SM, _LONG_ROW_BYTES = 2, 256 * KIB  # fewer rows, each longer: a block per row does not fill the GPU
_MOST_LINT = 4
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


def system_text(task: Task, emulated_only: bool = False, skill: str = "") -> str:
    """What a model is told once per task. `emulated_only`: no GPU is at hand, so only what the emulator runs counts.

    `skill`: what others learned, where the author is to be taught.
    """
    products = task.kind in PRODUCT_KINDS
    tiles = product_tiles(task) if products else 0
    advice, idioms = render_with_idioms(
        f"kinds/{task.kind.value}",
        half=any(one.dtype in _HALF for one in task.tensors),
        per_row=any(one.shape for one in task.outputs),
        precision=task.precision.value,
        tiles=tiles,
        sms=task.profile.sms,
        cute=names_cute(task),
        hopper=task.profile.cc == _HOPPER and not emulated_only,
        few_long=few_long_rows(task),
        columns=keeps_columns(task),
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
        skill=skill,
        task=task_text(task),
    )


@dataclass(frozen=True)
class FewLongRows:
    """Rows too few for a block each to fill the GPU."""

    rows: int
    kib: int


def few_long_rows(task: Task) -> FewLongRows | None:
    """Of the largest input: along its last dimension, or along as many as a parameter such as a weight has."""
    specs = sorted(task.specs().values(), key=lambda spec: -spec.numel * spec.dtype.itemsize)
    if not specs or specs[0].ndim < 2 or not any(one.shape for one in task.outputs):
        return None
    largest, *others = specs
    trailing = (one.ndim for one in others if one.ndim and one.shape == largest.shape[1:][-one.ndim :])
    along = max(trailing, default=1)
    row = math.prod(largest.shape[-along:]) * largest.dtype.itemsize
    rows = largest.numel * largest.dtype.itemsize // max(row, 1)
    few = rows < _ROWS_PER_SM * task.profile.sms and row >= _LONG_ROW_BYTES
    return FewLongRows(rows, row // KIB) if few else None


def keeps_columns(task: Task) -> bool:
    """Whether every result has fewer dimensions than the largest input and yet its last: it goes over others."""
    largest = max(task.tensors, key=lambda one: len(one.dimensions), default=None)
    return largest is not None and all(
        0 < len(one.shape) < len(largest.dimensions) and one.shape[-1] == largest.dimensions[-1] for one in task.outputs
    )


def names_cute(task: Task) -> bool:
    return mentions_cute(task.words) or mentions_cute(task.reference)


def wants_cute(task: Task) -> bool:
    """Whether CuTe is worth its place: for large tiles of matrices, or where the request or the reference names it."""
    if names_cute(task):
        return True
    return task.kind in PRODUCT_KINDS and min(product_sizes(task), default=0) >= _LARGE


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
    if task.kind not in PRODUCT_KINDS:
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


# -- the question of one attempt --


def question_text(situation: Situation) -> str:
    """What a model is asked for one attempt. Stages are templates of `templates/stages`."""
    hinted = mentions_cute(situation.hint) and not wants_cute(situation.task)
    return render(
        "question",
        situation=situation,
        history=history_text(situation.history, situation.noise, terms=situation.stage is Stage.PROFILED),
        body=_body(situation),
        cute=cute_text(situation.task, situation.emulated_only) if hinted else "",
        base=base_of(situation),
        lint=lint_lines(situation.lint),
        may_pass=may_pass(situation),
    )


def lint_lines(findings: Sequence[LintFinding]) -> list[str]:
    """The gravest in a line each; remarks are not worth their place."""
    grave = [one for one in findings if one.severity is not Severity.REMARK]
    return [
        f"- {f'line {one.line}' if one.line else one.kernel}: {one.rule.value}: {one.evidence}; {one.remedy}"
        for one in grave[:_MOST_LINT]
    ]


def base_of(situation: Situation) -> str | None:
    """The file that edits are of: the one the question shows."""
    if situation.stage is Stage.DRAFT and situation.parent is not None:
        return None  # another candidate of this step has passed already; this one begins anew
    shown = situation.failing_text if situation.stage.is_repair else situation.parent_text
    return shown or None


def may_pass(situation: Situation) -> bool:
    """Whether a reply may say that nothing is better than the best file."""
    return situation.stage in (Stage.STRUCTURE, Stage.PROFILED)


def correction_text(problem: str, *, cut: bool, base: str | None) -> str:
    """The one further question after a reply that could not be used; `cut`: it ended at the limit on output."""
    return render("correction", problem=problem.rstrip("."), cut=cut, base=base)


def _body(situation: Situation) -> str:
    name = f"stages/{situation.stage.value}"
    failing = situation.failing
    if situation.stage.is_repair:
        if failing is None:
            raise ValueError(f"a {situation.stage.value} step needs the attempt to repair")
        return render(
            name,
            situation=situation,
            verdict=verdict_text(failing.verdict, situation.failing_text),
            unsupported=isinstance(failing.verdict, Unsupported),
            declined=isinstance(failing.verdict, Rejected) and isinstance(failing.verdict.evidence, Declined),
        )
    if situation.stage is Stage.DRAFT:
        before = situation.history[: len(situation.history) - situation.candidate]  # not of this step
        return render(name, start=base_of(situation), given_up=bool(before))
    if situation.parent is None:
        raise ValueError(f"a {situation.stage.value} step needs a file that passed")
    standing = standing_text(situation.parent, situation.noise, bound=situation.stage is Stage.STRUCTURE)
    return render(name, situation=situation, standing=standing, little_left=_little_left(situation.parent))


def _little_left(best: Attempt) -> bool:
    """Whether the best file is so near what the model gives the least traffic that hardly anything can be gained."""
    measurement = best.measurement
    return isinstance(measurement, Modelled) and measurement.time_us <= _LITTLE * measurement.reachable_us
