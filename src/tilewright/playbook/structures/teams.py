"""Who shares a row that is held on chip, and how they tell each other what their shares come to.

The blocks of a cluster, which write to each other's shared memory and meet at the cluster's barrier, or send each other
messages; or blocks of the whole grid, all of them there at once, which meet in global memory. What is about the row's
mean or greatest element is summed up about the block's own at first, and corrected when shares are put together: so a
pass takes one exchange.
"""

from __future__ import annotations

from enum import Enum

from tilewright.playbook.cpp_text import indented
from tilewright.playbook.file_text import PlanLines
from tilewright.playbook.row_kernel import RowKernel
from tilewright.playbook.row_program import RowProgram
from tilewright.playbook.structures.sums import CORRECTIONS, SCRATCH_DTYPES, Correction, about, own_values, passes_of
from tilewright.playbook.templates import sections

_CUDA = sections("structures/teams")


class Team(Enum):
    CLUSTER = "cluster_ahead"
    GRID = "grid_ahead"


BARRIERS = _CUDA["barriers"]
MESSAGES = _CUDA["messages"]
GRID_MEETING = _CUDA["grid_meeting"]
WARP_REDUCE = _CUDA["warp_reduce"]


_FIRST_THREAD = "rank == 0 && threadIdx.x == 0"
# A cluster's first two rows; the second is asked for after the first has come, so that all have one before any has two.
_FIRST_ROWS = f"""\
__shared__ int first_rows[2], rows_ahead[2];
if ({_FIRST_THREAD}) {{
  const int one = atomicAdd(rows_taken, 1), two = atomicAdd(rows_taken, one < rows ? 1 : 0);
  for (int block = 0; block < BLOCKS; ++block) {{
    *cluster.map_shared_rank(&first_rows[0], block) = one;
    *cluster.map_shared_rank(&first_rows[1], block) = two;
  }}
}}
cluster.sync();
const long long start = first_rows[0];
long long next = first_rows[1];
if (start >= rows) return;  // all blocks of the cluster
""".splitlines()
_TICKET = """\
if (rank == 0 && threadIdx.x < 32) {
  ticket = __shfl_sync(~0u, ticket, 0);
  if (threadIdx.x < BLOCKS) *cluster.map_shared_rank(&rows_ahead[turn], threadIdx.x) = ticket;
}
""".splitlines()


def can_meet(program: RowProgram) -> bool:
    """Whether what blocks of a grid exchange are plain numbers."""
    kernel = RowKernel(program, quick=False)
    return all(kernel.accumulator_type(one) in ("float", "int", "long long") for one in kernel.all_reductions)


class Exchange:
    """The exchange between the blocks of a team, as text.

    `by_message`: the blocks of a cluster do not meet, but count the bytes that come. Messages wait for nothing that was
    stored before, as the barrier does, which decides where few blocks share a row and go on to the next soon.
    `by_ticket`: clusters stay, and each takes the next row that none has taken, which its first block tells the others
    with the exchange: multiprocessors do not get equal shares of memory's time.
    """

    def __init__(self, kernel: RowKernel, team: Team, shifts: bool, by_message: bool) -> None:
        self.kernel, self.program, self.team, self.shifts = kernel, kernel.program, team, shifts
        self.by_message = by_message and team is Team.CLUSTER
        self.passes = passes_of(kernel.program)
        self.by_ticket = team is Team.CLUSTER and not by_message and bool(self.passes)
        self.corrections: list[str] = []

    @property
    def helpers(self) -> list[str]:
        own = [GRID_MEETING, WARP_REDUCE] if self.team is Team.GRID else []
        own += [BARRIERS, MESSAGES] if self.by_message else []
        return [*own, *self.corrections]

    def scratches(self, plan: PlanLines, teams: str) -> tuple[list[str], list[str]]:
        """Parameters for what blocks of a grid leave to each other, and the arguments for them."""
        declared, given = [], []
        if self.team is Team.GRID:
            for index in self.kernel.all_reductions:
                kind, name = self.kernel.accumulator_type(index), plan.name(self._of_blocks(index))
                plan.add("scratch", f"{name}: {SCRATCH_DTYPES[kind]}[{teams}, 2, BLOCKS]")
                declared.append(f"{kind}* {self._of_blocks(index)}_of_teams")
                given.append(name)
            arrived = plan.name("arrived")
            plan.add("scratch", f"{arrived}: i32[{teams}, 32] zeroed", "blocks that have come, a 128-byte line a team")
            declared.append("int* arrived_of_teams")
            given.append(arrived)
        if self.by_ticket:
            given.append(plan.name("taken"))
            declared.append("int* rows_taken")
            plan.add("scratch", f"{given[-1]}: i32[32] zeroed", "rows that clusters have taken")
        return declared, given

    def places(self) -> list[str]:
        """Which share of which rows the block has."""
        rank = "cluster.block_rank()" if self.team is Team.CLUSTER else "blockIdx.x % BLOCKS"
        walks = "const long long start = blockIdx.x / BLOCKS, walks = gridDim.x / BLOCKS;"
        return [
            *(["const auto cluster = cg::this_cluster();"] if self.team is Team.CLUSTER else []),
            f"const int rank = {rank}, first = rank * share;",
            *([] if self.by_ticket else [walks]),
        ]

    def room(self) -> list[str]:
        """Memory for exchanges between warps, and between blocks."""
        kernel = self.kernel
        lines = kernel.partials("2][WARPS")
        kinds = [(kernel.accumulator_type(index), self._of_blocks(index)) for index in kernel.all_reductions]
        if self.team is Team.CLUSTER:
            lines += [f"__shared__ {kind} {name}[2][BLOCKS];" for kind, name in kinds]
            if self.by_message:
                count = 2 * len(self.passes)
                lines += [f"__shared__ unsigned long long arrived[{len(self.passes)}][2];"]
                lines += [f"if (threadIdx.x < {count}) begin(arrived[0] + threadIdx.x, 1 + BLOCKS);", "int phase = 0;"]
            lines += ["cluster.sync();  // every block must have begun before another writes to its shared memory"]
            lines += _FIRST_ROWS if self.by_ticket else []
        if self.team is Team.GRID:
            lines += [f"__shared__ {kind} {name}_together[2];" for kind, name in kinds]
            lines += [f"{kind}* {name} = {name}_of_teams + start * 2 * BLOCKS;" for kind, name in kinds]
            lines += ["int* arrived = arrived_of_teams + start * 32;", "int wanted = 0;"]
        return lines

    def turned(self) -> list[str]:
        """After a row."""
        following = ["row = next;", "next = rows_ahead[turn];"] if self.by_ticket else []
        return [*following, *(["phase ^= turn;"] if self.by_message else []), "turn ^= 1;"]

    def taking(self) -> list[str]:
        """Before a row: the one after the next is asked for."""
        return ["int ticket = 0;", f"if ({_FIRST_THREAD}) ticket = atomicAdd(rows_taken, 1);"] if self.by_ticket else []

    def own(self, level: int) -> list[str]:
        """The block's own mean or greatest element, in place of the row's."""
        count = self._elements("rank") if self.shifts else "count * WIDTH"
        return own_values(self.kernel, level, "block", f"static_cast<float>(max({count}, 1))")

    def _elements(self, block: str) -> str:
        """How many elements of the row a block has."""
        if self.shifts:
            return f"here.elements({block}, share, cols)"
        return f"max(min(share, cols / WIDTH - {block} * share), 0) * WIDTH"

    def over(self, number: int) -> list[str]:
        """What the blocks come to together in this pass."""
        kernel, levels = self.kernel, self.passes[number]
        own = [index for level in levels for index in kernel.own_reductions(level)]
        combined: list[str] = []
        for level in levels:
            for index in kernel.own_reductions(level):
                combined += self._combined(index, level != levels[0])
            kernel.reduced(level, "")
        if self.team is Team.CLUSTER:
            return [*(self._sent(own, number) if self.by_message else self._told(own, number)), *combined]
        for one in filter(None, (about(self.program, index) for index in own)):
            if one.value != one.first:
                del kernel.row_known[one.value]  # the mean, which is known to the warp that exchanges alone
        return self._met(own, combined)

    def _met(self, own: list[int], combined: list[str]) -> list[str]:
        """The exchange through global memory, by the warp that holds nothing; the block then has what it found."""
        kernel, names = self.kernel, [self.kernel.namer.of(one) for one in own]
        places = [f"{self._of_blocks(one)} + turn * BLOCKS" for one in own]
        stores = [f"*({place} + rank) = {name};" for place, name in zip(places, names, strict=True)]
        kinds = [kernel.accumulator_type(one) for one in own]
        loads = [f"{name}_parts[k] = __ldcg({place} + block);" for name, place in zip(names, places, strict=True)]
        inner = [
            "const int lane = threadIdx.x % 32;",
            "if (lane == 0) {",
            *indented([*stores, "meet(arrived, wanted);"]),
            "}",
            "__syncwarp();",
            *(f"{kind} {name}_parts[(BLOCKS + 31) / 32];" for kind, name in zip(kinds, names, strict=True)),
            *self._each_block(loads),
            *combined,
            "if (lane == 0) {",
            *(f"  {self._of_blocks(one)}_together[turn] = {name};" for one, name in zip(own, names, strict=True)),
            "}",
        ]
        after = [f"{name} = {self._of_blocks(one)}_together[turn];" for one, name in zip(own, names, strict=True)]
        return ["wanted += BLOCKS;", "if (threadIdx.x >= HOLDERS) {", *indented(inner), "}", "__syncthreads();", *after]

    def _told(self, own: list[int], number: int) -> list[str]:
        """The exchange through the shared memory of the blocks of a cluster; with the first, the row after the next."""
        slots = [(f"&{self._of_blocks(one)}[turn][rank]", self.kernel.namer.of(one)) for one in own]
        sends = [f"*cluster.map_shared_rank({slot}, threadIdx.x) = {name};" for slot, name in slots]
        told = _TICKET if self.by_ticket and number == 0 else []
        return [*told, "if (threadIdx.x < BLOCKS) {", *indented(sends), "}", "cluster.sync();"]

    def _sent(self, own: list[int], number: int) -> list[str]:
        """The exchange by messages between the blocks of a cluster."""
        kernel, barrier = self.kernel, f"&arrived[{number}][turn]"
        size = " + ".join(f"sizeof({kernel.namer.of(one)})" for one in own)
        size = f"({size})" if len(own) > 1 else size
        slots = [(f"&{self._of_blocks(one)}[turn][rank]", kernel.namer.of(one)) for one in own]
        sends = [f"send({slot}, {name}, {barrier}, threadIdx.x);" for slot, name in slots]
        return [
            f"if (threadIdx.x == 0) expect_bytes({barrier}, BLOCKS * {size});",
            "if (threadIdx.x < BLOCKS) {",
            *indented([*sends, f"arrive_in(threadIdx.x, {barrier});"]),
            "}",
            f"await({barrier}, phase);",
        ]

    def _of_blocks(self, index: int) -> str:
        return f"{self.kernel.namer.of(index)}_of_blocks"

    def _share(self, index: int) -> str:
        """What a block came to."""
        if self.team is Team.GRID:
            return f"{self.kernel.namer.of(index)}_parts[k]"
        return f"{self._of_blocks(index)}[turn][block]"

    def _combined(self, index: int, corrected: bool) -> list[str]:
        kernel, name, combiner = self.kernel, self.kernel.namer.of(index), self.kernel.combiner(index)
        one = about(self.program, index) if corrected else None
        lines: list[str] = []
        body = [f"{name} = {combiner}{{}}({name}, {self._share(index)});"]
        if one is not None:
            self.corrections += [CORRECTIONS[one.correction.value]]
            if one.value != one.first:
                kernel.row_known.pop(one.value, None)
                lines += kernel.row_scope((one.value,))
            whole, earlier, moved = kernel.row_known[one.value].text, self._share(one.first), self._share(index)
            if one.correction is Correction.MOMENTS:
                body = [
                    f"const int counted = {self._elements('block')};",
                    f"const float own = {earlier} / static_cast<float>(max(counted, 1));",
                    f"{name} += static_cast<float>(moved_squares({moved}, own, {whole}, counted));",
                ]
            else:
                body = [
                    f"const float own = {earlier};",
                    f"{name} += static_cast<float>(moved_exponentials({moved}, own, {whole}));",
                ]
        lines += [f"{name} = {kernel.start(index)};", *self._each_block(body)]
        return lines if self.team is Team.CLUSTER else [*lines, f"{name} = warp_reduce({name}, {combiner}{{}});"]

    def _each_block(self, inner: list[str]) -> list[str]:
        """Something done for every block of the team: by every thread, or by a lane for each of its own."""
        if self.team is Team.CLUSTER:
            return ["#pragma unroll", "for (int block = 0; block < BLOCKS; ++block) {", *indented(inner), "}"]
        loop = "for (int k = 0; k < (BLOCKS + 31) / 32; ++k) {"
        guarded = ["const int block = k * 32 + lane;", "if (block < BLOCKS) {", *indented(inner), "}"]
        return ["#pragma unroll", loop, *indented(guarded), "}"]
