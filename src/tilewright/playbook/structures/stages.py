"""Long rows held by a team while a warp sends for the next ones, stage by stage and only so many at a time.

As `ahead`, whose sweeps and exchanges these are. There, every thread sends for all of its share of the next row at
once; fast multiprocessors then hold up those that a whole team waits for. Here a stage is one vector of every thread,
stages form a ring in shared memory, and of those on their way there are never more than PACE.
"""

from __future__ import annotations

from tilewright.playbook.cpp_helpers import BLOCK_REDUCE, VECTOR
from tilewright.playbook.cpp_text import indented
from tilewright.playbook.file_text import Fragment, PlanLines, fragment, includes
from tilewright.playbook.row_kernel import RowKernel
from tilewright.playbook.row_program import RowProgram
from tilewright.playbook.structures.ahead import FORGET, OWNERS, Ahead
from tilewright.playbook.structures.teams import BARRIERS, Exchange, Team, can_meet

_HELD_BYTES = 256  # of a row, in the registers of a thread: with a further warp it has 96 registers
_HOLDERS = 512
STAGED_SHARE_BYTES = _HOLDERS * _HELD_BYTES  # in one block
_TOGETHER = "workers_sync();"

_STAGES = """\
// Sends for bytes, which come to shared memory by themselves and are counted there.
__device__ __forceinline__ void bring(void* to, const void* from, int bytes, unsigned long long* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

__device__ __forceinline__ void arrive(unsigned long long* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Waits for a stage of the block's own: until it is full, or has been read.
__device__ __forceinline__ void await_stage(unsigned long long* barrier, int phase) {
  asm volatile("{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra AGAIN; }" ::"r"(
                   shared_address(barrier)),
               "r"(phase)
               : "memory");
}

// A place in the ring of stages, and how often the ring has been gone through, of which barriers know the last bit.
struct Place {
  int stage, phase;

  __device__ void advance() {
    if (++stage == STAGES) stage = 0, phase ^= 1;
  }
};
"""

_WORKERS = """\
// The threads that work on a row wait for each other; the warp that sends for rows is far ahead of them.
__device__ __forceinline__ void workers_sync() { asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory"); }
"""


def can_stage(program: RowProgram) -> bool:
    """Whether a row is one run of memory in whole 16-byte vectors, and what blocks exchange are plain numbers."""
    one = program.streams[0] if len(program.streams) == 1 else None
    return one is not None and one.dtype.itemsize == program.widest.itemsize and can_meet(program)


def staged_rows(program: RowProgram, op_line: str, team: Team, quick: bool = True) -> Fragment:
    kernel = RowKernel(program, quick)
    writer = _Staged(kernel, team)
    plan = PlanLines(program, op_line)
    signature, name, longer = writer.plan(plan)
    text = signature.kernel("__launch_bounds__(THREADS + 32)", name, writer.body())
    helpers = [*kernel.forms.helpers(), *kernel.reduction_helpers(), _WORKERS, BLOCK_REDUCE, BARRIERS, _STAGES]
    helpers += [*writer.exchange.helpers, *longer.helpers]
    among_workers = [one.replace("__syncthreads();", _TOGETHER) for one in dict.fromkeys(helpers)]
    constants = ["constexpr int WARPS = THREADS / 32;"]
    more: list[str] = []
    if team is Team.CLUSTER:
        constants = ["namespace cg = cooperative_groups;", "", *constants]
        more.append("cooperative_groups.h")
    pieces = [constants, [VECTOR], *([one] for one in among_workers), text, longer.text]
    return fragment(_header(program.name, team), plan, includes(program, *more), *pieces)


def _header(name: str, team: Team) -> str:
    return (
        f"{name} for long rows: a row in registers, and the next ones on their way to shared memory at a pace.\n\n"
        f"{OWNERS[team]} on to others. A warp of its own sends for them, stage by stage: a stage is a vector of every "
        "thread, and a ring of stages is all of shared memory. Never more than PACE of a block are on their way: "
        "enough for memory to be busy, and not so much that quick blocks hold up those that all wait for.\n\n"
        "What is summed up about the row's mean or greatest element is summed up about the block's own at first and "
        "then corrected: so the blocks exchange once.\n\n"
        "Rows that are too long, or no whole number of 16-byte vectors, are left to the second kernel, which goes "
        "along them element by element."
    )


class _Staged(Ahead):
    held_bytes = _HELD_BYTES
    holders_of_grid = _HOLDERS

    def __init__(self, kernel: RowKernel, team: Team) -> None:
        super().__init__(kernel, team)
        self.hopper, self.shifts, self.paced = True, False, False
        self.exchange = Exchange(kernel, team, False, by_message=True, together=_TOGETHER, by_lanes=True)

    def most_of_team(self, plan: PlanLines) -> str:
        most, warps = plan.name("most"), plan.name("warps")
        plan.add("let", f"{most} = device.sms / TEAMS, {warps} = {most} / 32")
        return f"({warps} * 32 if {warps} > 0 else {most})"  # so that each lane that exchanges has as many

    def fits_shared(self, row_bytes: str) -> str:
        return f"WIDTH == {self.size}"

    def block(self, plan: PlanLines, row_bytes: str) -> str:
        stage = f"{self.holders} * 16"
        plan.add("const", f"STAGES = (device.smem_block - 8192) / ({stage})", "of a vector of every thread, in a ring")
        choice = ("const", "PACE = 6") if self.team is Team.CLUSTER else ("tune", "PACE = 4 | 6")
        plan.add(*choice, "stages of a block that are on their way together")
        return f"THREADS + 32, STAGES * {stage}"

    # -- kernel --

    def body(self) -> list[str]:
        (stream,) = self.program.streams
        name, vector = self.kernel.name(stream.name), f"Vector<{stream.dtype.cpp}>"
        grid = self.team is Team.GRID
        inner = [
            *FORGET,
            f"{vector} {name}_held[VECTORS];",
            *self._received(name),
            "",
            *self.kernel.index_lines(*(one for one in self.program.inputs if one is not stream)),
            *self._other_pointers(),
            *self._targets(),
            *self._steps(),
            *self.exchange.turned(),
        ]
        return [
            "extern __shared__ uint4 dynamic[];",
            f"auto* {name}_stages = reinterpret_cast<{vector}*>(dynamic);",
            *(line.replace("const int rank", "int rank") for line in self.exchange.places()),
            "// The last blocks may have less, or nothing.",
            "const int share_here = max(min(share, cols / WIDTH - first), 0);",
            f"const int count = {'threadIdx.x < HOLDERS ? share_here : 0' if grid else 'share_here'};",
            "__shared__ unsigned long long full[STAGES], empty[STAGES];",
            "if (threadIdx.x < STAGES) {",
            "  begin(full + threadIdx.x, 1);",
            f"  begin(empty + threadIdx.x, {self.holders} / 32);",
            "}",
            *self.exchange.room(),
            *(["__syncthreads();"] if grid else []),
            "if (threadIdx.x >= THREADS) {",
            *indented(self._sent(name, vector)),
            "  return;",
            "}",
            "Place at{0, 0};",
            "int turn = 0;  // so that a quick warp does not write over what a slow one still reads",
            "for (long long row = start; row < rows; row += walks) {",
            *indented(inner),
            "}",
        ]

    def _sent(self, name: str, vector: str) -> list[str]:
        """What one lane of the further warp does: it sends for every stage of every row of the block."""
        stream = self.program.streams[0]
        source = f"{name} + {f'{name}_row' if stream.parts else 'row'} * cols"
        each = [
            f"const int length = min({self.holders}, share_here - k * {self.holders});",
            "await_stage(empty + at.stage, at.phase ^ 1);  // the first time at once",
            "if (sent < PACE) {",
            "  ++sent;",
            "} else {",
            "  await_stage(full + late.stage, late.phase);",
            "  late.advance();",
            "}",
            f"auto* to = {name}_stages + at.stage * {self.holders};",
            f"expect_bytes(full + at.stage, length * sizeof({vector}));",
            f"bring(to, {name}_ahead + k * {self.holders}, length * sizeof({vector}), full + at.stage);",
            "at.advance();",
        ]
        rows = [
            *self.kernel.index_lines(stream),
            f"const auto* {name}_ahead = reinterpret_cast<const {vector}*>({source}) + first;",
            f"for (int k = 0; k * {self.holders} < share_here; ++k) {{",
            *indented(each),
            "}",
        ]
        return [
            "Place at{0, 0}, late{0, 0};  // the next stage to send for, and the first that may be on its way",
            "int sent = 0;",
            "for (long long row = start; threadIdx.x == THREADS && row < rows; row += walks) {",
            *indented(rows),
            "}",
        ]

    def _received(self, name: str) -> list[str]:
        """A thread's vectors of the row, each from a stage that is then free."""
        inner = [
            "await_stage(full + at.stage, at.phase);",
            f"const int place = k * {self.holders} + threadIdx.x;",
            f"if (place < count) {name}_held[k] = {name}_stages[at.stage * {self.holders} + threadIdx.x];",
            "__syncwarp();",
            "if (threadIdx.x % 32 == 0) arrive(empty + at.stage);",
            "at.advance();",
        ]
        held = [f"if (k * {self.holders} < count) {{", *indented(inner), "}"]
        return ["#pragma unroll", "for (int k = 0; k < VECTORS; ++k) {", *indented(held), "}"]
