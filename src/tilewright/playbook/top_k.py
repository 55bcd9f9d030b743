"""Top-k: the few greatest or least elements of every row, in order, and where they are.

Every thread keeps the best it has met, and the threads' lists are merged best by best.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from tilewright.playbook.cpp_pieces import VECTOR
from tilewright.playbook.cpp_text import Text, indented
from tilewright.playbook.errors import NoMatch
from tilewright.playbook.families import Family, Schedules, Structure, TracedTask
from tilewright.playbook.file_text import MOST_32_BIT, PlanLines, fragment, includes
from tilewright.playbook.places.indices import Variable, of_variable
from tilewright.playbook.places.program import PlacedProgram, whole_program
from tilewright.playbook.places.reader import PlaceReader, PlaceRule, Places, Whole
from tilewright.playbook.places.rules import PLACE_RULES
from tilewright.playbook.places.text import PlacedKernel, product_text, width_line
from tilewright.playbook.places.vectors import Known, each_element, guarded, over_vectors
from tilewright.playbook.row_program import NumberKind
from tilewright.playbook.tracing import Node, TracedNode

MOST = 32  # elements that are chosen: what one warp writes at once


@dataclass(frozen=True)
class TopProgram:
    placed: PlacedProgram
    rows: tuple[Variable, ...]
    along: Variable  # what the elements are chosen from
    chosen: Variable  # their number in the result
    count: int
    value: int  # of an element
    largest: bool
    values_leaf: str | None  # stand for the chosen values and their indices, where they are used
    indices_leaf: str | None


def top_program(traced: TracedTask) -> TopProgram:
    """The one choice of the task. Raises `NotSupported` for anything else."""
    reader = PlaceReader(traced, RULES)
    placed = whole_program(reader, "with topk")
    wholes = placed.wholes
    if len({(one.node, one.places) for one in wholes.values()}) != 1:
        raise NoMatch
    whole = next(iter(wholes.values()))
    node = reader.nodes[whole.node]
    counts = set(reader.whole_number(whole.node, 1, "k", 0))
    if len(counts) != 1 or not 1 <= (count := counts.pop()) <= MOST:
        raise NoMatch
    if not whole.places:
        raise NoMatch
    dim = reader.dimension(node, 2, "dim", len(whole.places), len(whole.places) - 1)
    place = whole.places[dim]
    chosen = place.atoms[0] if len(place.terms) == 1 and place.constant.is_always(0) else None
    if count == 1 and not place.terms:
        chosen = Variable("at_chosen", reader.book.number(1))
    if not isinstance(chosen, Variable) or (place.terms and not place.terms[0][1].is_always(1)):
        raise NoMatch
    along = Variable("at_element", reader.shape(reader.source(node))[dim])
    value = reader.argument(node, 0, (*whole.places[:dim], of_variable(along), *whole.places[dim + 1 :]))
    if reader.kinds[value] is not NumberKind.FLOAT:
        raise NoMatch
    placed = placed.renewed(reader, value)
    if any(isinstance(leaf, Whole) for leaf in placed.leaves_of((value,)).values()):
        raise NoMatch
    names = {one.result: name for name, one in wholes.items()}
    largest = reader.flag(node, 3, "largest", True)
    rows = tuple(one for one in placed.variables if one != chosen)
    return TopProgram(placed, rows, along, chosen, count, value, largest, names.get(0), names.get(1))


def _getitem(reader: PlaceReader, index: int, node: TracedNode, places: Places) -> int:
    source, which = node.arguments
    assert isinstance(source, Node)
    if reader.nodes[source.index].target != "topk":
        return PLACE_RULES["getitem"](reader, index, node, places)
    assert isinstance(which, int)
    kind = NumberKind.INT if which else NumberKind.FLOAT
    return reader.leaf("best_index" if which else "best", Whole(source.index, places, (), which), kind)


RULES: dict[str, PlaceRule] = {**PLACE_RULES, "getitem": _getitem}


_MANY_ROWS = 4096

CANDIDATE = """\
struct Candidate {{
  float value;
  int index;
}};

// What any element comes before.
__device__ __forceinline__ Candidate none() {{ return {{{worst}, 0x7fffffff}}; }}

"""
_ORDER = """\
// Whether a comes before b: {words}, NaN as the greatest, and among equals the lower index comes first.
__device__ __forceinline__ bool comes_before(Candidate a, Candidate b) {{
  const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
  if (a_nan != b_nan) return {nan};
  if (a_nan || a.value == b.value) return a.index < b.index;
  return a.value {sign} b.value;
}}
"""
LISTS = """\
// Takes a candidate into a list in order, where it is better than the last.
__device__ __forceinline__ void take(Candidate (&list)[COUNT], Candidate met) {{
  if (met.value {worse} list[COUNT - 1].value || !comes_before(met, list[COUNT - 1])) return;  // as nearly all do
  list[COUNT - 1] = met;
  unrolled for (int place = COUNT - 1; place > 0; place -= 1) {{
    if (comes_before(list[place], list[place - 1])) {{
      const Candidate better = list[place];
      list[place] = list[place - 1];
      list[place - 1] = better;
    }}
  }}
}}

// The best of the heads of all lanes' lists; the lane that had it goes on to its next.
__device__ __forceinline__ Candidate best_of_heads(Candidate (&list)[COUNT]) {{
  Candidate best = list[0];
  unrolled for (int offset = 16; offset > 0; offset /= 2) {{
    const Candidate other = {{__shfl_xor_sync(~0u, best.value, offset), __shfl_xor_sync(~0u, best.index, offset)}};
    if (comes_before(other, best)) best = other;
  }}
  if (list[0].index == best.index) {{
    unrolled for (int place = 0; place + 1 < COUNT; ++place) list[place] = list[place + 1];
    list[COUNT - 1] = none();
  }}
  return best;
}}
"""


def _written(program: TopProgram, op_line: str) -> str:
    plan = PlanLines(program.placed.as_rows(), op_line)
    plan.add("let", f"@rows = {product_text(program.rows)}, @steps = {program.along.size.text}")
    plan.add("need", f"@rows <= {MOST_32_BIT} and @steps <= {MOST_32_BIT}")
    kernel = PlacedKernel(program.placed, plan, program.along, quick=False)
    plan.add("tune", _warp_choices(program, kernel.width), "of a row")
    plan.add("tune", "TEAMS = 4 | 8 | 1", "rows of a block")
    plan.add("need", "WARPS == 1 or TEAMS == 1", "several warps of a row wait for the whole block")
    plan.add("tune", "VECTORS = 2 | 1 | 4", "loads of a thread under way")
    width_line(plan, kernel)
    body = _body(kernel, program)
    more = [("unsigned rows", "@rows"), ("int steps", "@steps")]
    block = "dim3(WARPS * 32, TEAMS)"
    text = kernel.launched("top", "ceil_div(@rows, TEAMS)", block, "WARPS * 32 * TEAMS", body, more)
    header = (
        f"{program.placed.name}, every row read once: one warp or more for a row.\n\nA thread keeps the "
        f"{program.count} best elements that it has met, in order, in registers. Then the "
        "lists of a warp are merged: the best of all heads, again and again. What the warps have goes through shared "
        "memory, and the first warp merges that in the same way."
    )
    words = "the greater value" if program.largest else "the lesser value"
    order = _ORDER.format(
        words=words, nan="a_nan" if program.largest else "b_nan", sign=">" if program.largest else "<"
    )
    worst = "-INFINITY" if program.largest else "NAN"
    constants = [f"constexpr int COUNT = {program.count};  // elements that are chosen"]
    pieces = [[VECTOR], *([one] for one in kernel.forms.helpers())]
    return fragment(
        header,
        plan,
        includes(program.placed.as_rows()),
        constants,
        *pieces,
        [CANDIDATE.format(worst=worst) + order],
        [LISTS.format(worse="<" if program.largest else ">")],
        text,
    ).file()


def _warp_choices(program: TopProgram, width: int) -> str:
    """One warp where rows are many: every warp of a row is one more list to merge."""
    if math.prod(one.size.own for one in program.rows) >= _MANY_ROWS:
        return "WARPS = 1 | 2 | 4"
    vectors = max(program.along.size.own // width, 1)
    best = max(one for one in (1, 2, 4, 8, 16) if one == 1 or one * 64 <= vectors)
    near = sorted((1, 2, 4, 8, 16), key=lambda one: (abs(one.bit_length() - best.bit_length()), one))
    return f"WARPS = {' | '.join(map(str, near[:3]))}"


def _body(kernel: PlacedKernel, program: TopProgram) -> list[str]:
    lines = [
        "__shared__ Candidate of_warps[WARPS][COUNT];",
        "const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;",
        "const unsigned row = blockIdx.x * TEAMS + threadIdx.y;",
        "if (row >= rows) return;",
        *kernel.split(program.rows, "row"),
        "Candidate list[COUNT];",
        "unrolled for (int place = 0; place < COUNT; ++place) list[place] = none();",
        *_met(kernel, program),
        "Candidate mine = none();  // the lane's share of the result",
        "for (int turn = 0; turn < COUNT; ++turn) {",
        "  const Candidate best = best_of_heads(list);",
        "  if (lane == turn) mine = best;",
        "}",
        "if constexpr (WARPS > 1) {",
        "  if (lane < COUNT) of_warps[warp][lane] = mine;",
        "  __syncthreads();",
        "  if (warp > 0) return;",
        "#pragma unroll",
        "  for (int place = 0; place < COUNT; ++place) list[place] = lane < WARPS ? of_warps[lane][place] : none();",
        "  for (int turn = 0; turn < COUNT; ++turn) {",
        "    const Candidate best = best_of_heads(list);",
        "    if (lane == turn) mine = best;",
        "  }",
        "}",
        "if (lane >= COUNT) return;",
        f"const int {kernel.variable(program.chosen)} = lane;",
    ]
    known: Known = {}
    if program.values_leaf is not None:
        known[kernel.value_of(program.values_leaf)] = Text("mine.value")
    if program.indices_leaf is not None:
        known[kernel.value_of(program.indices_leaf)] = Text("static_cast<long long>(mine.index)")
    return [*lines, *kernel.store_each(known)]


def _met(kernel: PlacedKernel, program: TopProgram) -> list[str]:
    """Along the row: every element met."""
    at, held = kernel.variable(program.along), kernel.held((program.value,), "[k]")
    place = f"const int {at} = ((first * VECTORS + k) * WARPS * 32 + static_cast<int>(threadIdx.x)) * WIDTH;"
    inner, texts = kernel.write((program.value,), {}, held.element)
    meeting = [*inner, f"take(list, Candidate{{{texts[program.value].text}, {at} + i}});"]
    body = held.declared("here[VECTORS]")
    body += over_vectors(guarded(place, f"{at} < steps", held.loads())) if held.reads else []
    body += over_vectors(guarded(place, f"{at} < steps", each_element(meeting)))
    return ["for (int first = 0; first * VECTORS * WARPS * 32 * WIDTH < steps; ++first) {", *indented(body), "}"]


def _matches(traced: TracedTask) -> Schedules | None:
    if "topk" not in traced.targets:
        return None
    program = top_program(traced)
    summary = "a block per row read once in 16-byte vectors, lists of the best kept in registers and merged"
    return Schedules((Structure("top-lists", summary, partial(_written, program)),))


TOP_K = Family("top-k", frozenset(("topk",)), _matches)
