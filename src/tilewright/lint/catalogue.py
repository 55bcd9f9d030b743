"""Every rule's severity, reason and remedy. docs/lint.md shows each firing and not firing."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.records import LintFinding, LintRule, Severity


@dataclass(frozen=True)
class RuleText:
    severity: Severity
    why: str
    remedy: str


RULES: dict[LintRule, RuleText] = {
    LintRule.DIVERGENT_BARRIER: RuleText(
        Severity.ERROR,
        "a barrier that some threads of a block do not reach deadlocks or pairs with another one",
        "move the barrier out of the condition; let the other threads skip the work, not the barrier",
    ),
    LintRule.MISSING_BOUNDS: RuleText(
        Severity.ERROR,
        "the plan accepts these sizes, and at them threads access memory past the end of a tensor",
        "compare the index with the size before the access, or decline such sizes with a `need` line",
    ),
    LintRule.INDEX_OVERFLOW: RuleText(
        Severity.ERROR,
        "a 32-bit index overflows beyond 2,147,483,647 elements, and the access goes elsewhere",
        "compute the product in 64 bits: make one factor `long long` before multiplying",
    ),
    LintRule.MISALIGNED: RuleText(
        Severity.ERROR,
        "an access at an address that is not a multiple of its size ends the kernel with an error",
        "make the row length a `need` (`need cols % 4 == 0`), or use narrow accesses where it does not divide",
    ),
    LintRule.UNWAITED_COPY: RuleText(
        Severity.ERROR,
        "cp.async returns before the data has arrived, so what is read is old or partial",
        "call __pipeline_wait_prior or cp.async.wait_group, then __syncthreads(), before reading",
    ),
    LintRule.UNCOALESCED: RuleText(
        Severity.WARNING,
        "memory moves in sectors of 32 bytes; lanes with distant addresses fetch bytes that nobody uses",
        "let neighbouring lanes access neighbouring elements, or transpose the tile in shared memory",
    ),
    LintRule.BANK_CONFLICT: RuleText(
        Severity.WARNING,
        "shared memory has 32 banks of 4 bytes; lanes that access one bank at different words are serialised",
        "pad the rows (`tile[32][33]`) or swizzle the columns",
    ),
    LintRule.SPILL: RuleText(
        Severity.WARNING,
        "registers that do not fit are spilled to local memory, which is cached device memory",
        "hold fewer values at once, use fewer threads per block, or loosen __launch_bounds__",
    ),
    LintRule.LOCAL_ARRAY: RuleText(
        Severity.WARNING,
        "an array with indices unknown at compile time lies in local memory: every access is a load or a store",
        "unroll the loops that index it (`#pragma unroll`, constant bounds), or move it to shared memory",
    ),
    LintRule.ACCIDENTAL_DOUBLE: RuleText(
        Severity.WARNING,
        "f64 arithmetic runs at 1/2 to 1/64 of the speed of f32, and every operand is converted twice",
        "write the literal with an f (`0.5f`) and call the f32 function (`expf`, `fmaxf`)",
    ),
    LintRule.SERIAL_ATOMIC: RuleText(
        Severity.WARNING,
        "atomics on one address are serialised, for all threads of all blocks",
        "reduce within the warp and the block first (__shfl_xor_sync, shared memory), then add with one thread",
    ),
    LintRule.IDLE_TENSOR_CORES: RuleText(
        Severity.WARNING,
        "16-bit matrix products run some ten times faster on the tensor cores than as separate multiplications",
        "multiply tiles with mma.sync (nvcuda::wmma, CuTe); accumulate in f32 as now",
    ),
    LintRule.OCCUPANCY_CLIFF: RuleText(
        Severity.REMARK,
        "multiprocessors hold whole blocks, so slightly too much of one resource costs a whole block",
        "reduce it: shorter live ranges, __launch_bounds__(THREADS, BLOCKS), a smaller tile; then measure",
    ),
    LintRule.NARROW_LOAD: RuleText(
        Severity.REMARK,
        "loads of 16 bytes per thread keep more bytes in flight with fewer instructions",
        "load a float4 (or 8 halves as one uint4) where rows are a multiple of 16 bytes",
    ),
    LintRule.MISSING_RESTRICT: RuleText(
        Severity.REMARK,
        "the compiler must assume that the store changes what the next load reads, so loads cannot be moved up",
        "declare the pointers `const T* __restrict__` and `T* __restrict__`",
    ),
    LintRule.SWALLOWED_NAN: RuleText(
        Severity.REMARK,
        "fmaxf and fminf return the other operand for a NaN; PyTorch's relu, clamp, max and min return the NaN",
        "compare in its place: `x < 0 ? 0 : x` keeps a NaN; for halves there are __hmax_nan and __hmin_nan",
    ),
}


def found(rule: LintRule, kernel: str, line: int | None, evidence: str) -> LintFinding:
    text = RULES[rule]
    return LintFinding(rule, text.severity, kernel, line, evidence, text.why, text.remedy)
