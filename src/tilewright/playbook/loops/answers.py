"""The answer for any graph: lower it, schedule it, write one kernel file of as many launches as it takes."""

from __future__ import annotations

from functools import partial

from tilewright.playbook.errors import NotSupported
from tilewright.playbook.families import Answer, Structure, TracedTask
from tilewright.playbook.loops import rules_lookups, rules_pointwise, rules_reductions, rules_views  # noqa: F401
from tilewright.playbook.loops.attention import fuse_attention
from tilewright.playbook.loops.codegen import KernelFile
from tilewright.playbook.loops.emit import QUICK
from tilewright.playbook.loops.grouping import Group, Grouping
from tilewright.playbook.loops.ir import Program, uses
from tilewright.playbook.loops.lowering import RULES, Lowering
from tilewright.playbook.loops.memory import Memory, planned, with_copies
from tilewright.playbook.loops.narrow import hoist_factors, narrow_scratch
from tilewright.playbook.loops.scheduler import prepare
from tilewright.playbook.tracing import Trace
from tilewright.records import DType

_MOST_LAUNCHES, _MOST_SCRATCH = 128, 64

KEPT = tuple(sorted(RULES))  # operations that are read as they are; all others are decomposed by PyTorch's rules


def loops_answer(traced: TracedTask, own: Trace | None = None, least: Trace | None = None) -> Answer:
    """One kernel file; `own`, the trace at the task's own sizes, says which of two explanations of a size is right, and
    `least`, that at the least sizes, whether they hold there too.

    Raises `NotSupported` where an operation has no rule, or a size follows from nothing known.
    """
    program = Lowering(traced, own, least).run()
    prepare(program)
    hoist_factors(program)
    narrow_scratch(program)
    fuse_attention(program)
    groups = with_copies(program, Grouping(program).run())
    memory = planned(program, groups)
    if len(groups) > _MOST_LAUNCHES or len(memory.slots) > _MOST_SCRATCH:
        raise NotSupported(
            f"the function takes {len(groups)} launches and {len(memory.slots)} scratch buffers, and a kernel file has "
            f"at most {_MOST_LAUNCHES} and {_MOST_SCRATCH}; split it into functions"
        )
    notes = [_shown(number, group) for number, group in enumerate(groups)]
    count = "one launch" if len(groups) == 1 else f"{len(groups)} launches"
    shown = tuple(notes) if len(groups) > 1 else ()
    summary = f"baseline: {count}, loops fused by what they save"
    draft = Structure("loops", summary, partial(_written, traced, program, groups, memory, False), notes=shown)
    if _takes_quick_forms(program, groups):
        quick = partial(_written, traced, program, groups, memory, True)
        draft = Structure("loops-quick", f"{summary}; fast-math", quick, safer=draft, notes=shown)
    return Answer(draft, (), (draft,))


def _written(
    traced: TracedTask, program: Program, groups: list[Group], memory: Memory, is_quick: bool, op_line: str
) -> str:
    return KernelFile(traced, program, groups, memory, op_line, is_quick).text([])


def _takes_quick_forms(program: Program, groups: list[Group]) -> bool:
    """Whether all results are floats of 16 bits, and quick functions are needed for them."""
    results = [buffer for buffer in program.buffers.values() if buffer.role in ("output", "changed")]
    if not all(one.dtype in (DType.F16, DType.BF16) for one in results):
        return False
    return any(uses(one.body, QUICK) for group in groups for one in group.members)


def _shown(number: int, group: Group) -> str:
    kinds = [one.op if one.kind == "reduction" else one.kind for one in group.nodes]
    return f"launch {number + 1}: {', '.join(dict.fromkeys(kinds))}"
