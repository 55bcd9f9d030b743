"""Tasks of every kind, and situations of every stage, as a run would make them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tilewright.records import (
    Attempt,
    Case,
    CaseResult,
    CaseStatus,
    Crashed,
    Diagnostic,
    Dimension,
    DType,
    FailureReason,
    FindingKind,
    FindingRecord,
    IndexValues,
    Kind,
    Modelled,
    ModelTerm,
    NotBuilt,
    NumberInput,
    Passed,
    Pattern,
    Rejected,
    ScalarType,
    Severity,
    Situation,
    Stage,
    Task,
    TaskOutput,
    TensorInput,
    ThreadRecord,
    TuneResult,
    Verdict,
    WrongElement,
    WrongOutput,
    WrongValues,
)

EXAMPLES = Path(__file__).parents[2] / "examples"
KERNEL = (EXAMPLES / "layernorm_gelu.cu").read_text()
LONG_KERNEL = (EXAMPLES / "matmul_wgmma_tma.cu").read_text()  # about 250 lines


def _function(name: str, arguments: str, *body: str) -> str:
    lines = "".join(f"    {line}\n" for line in body)
    return f"import torch\nimport torch.nn.functional as F\n\n\ndef {name}({arguments}):\n{lines}"


def _rows(name: str, kind: Kind, body: str, dtype: DType = DType.BF16) -> Task:
    return Task(
        name=name,
        reference=_function(name, "x", body),
        function=name,
        inputs=(TensorInput("x", dtype, ("rows", "cols")),),
        outputs=(TaskOutput("y", dtype, ("rows", "cols")),),
        dimensions=(Dimension("rows", 8192), Dimension("cols", 4096)),
        kind=kind,
    )


LAYERNORM = Task(
    name="layernorm_gelu",
    reference=_function(
        "layernorm_gelu",
        "x, weight, bias, eps: float = 1e-5",
        "y = F.layer_norm(x, x.shape[-1:], weight, bias, eps)",
        "return F.gelu(y)",
    ),
    function="layernorm_gelu",
    inputs=(
        TensorInput("x", DType.BF16, ("rows", "cols")),
        TensorInput("weight", DType.BF16, ("cols",), parameter=True),
        TensorInput("bias", DType.BF16, ("cols",), parameter=True),
        NumberInput("eps", ScalarType.FLOAT, 1e-5),
    ),
    outputs=(TaskOutput("y", DType.BF16, ("rows", "cols")),),
    dimensions=(Dimension("rows", 4096), Dimension("cols", 1024)),
    kind=Kind.NORMALISATION,
)


def _matmul(kind: Kind = Kind.MATMUL, dtype: DType = DType.BF16) -> Task:
    return Task(
        name="linear_gelu",
        reference=_function("linear_gelu", "x, w, bias", "return F.gelu(F.linear(x, w, bias))"),
        function="linear_gelu",
        inputs=(
            TensorInput("x", dtype, ("m", "k")),
            TensorInput("w", dtype, ("n", "k"), parameter=True),
            TensorInput("bias", dtype, ("n",), parameter=True),
        ),
        outputs=(TaskOutput("y", dtype, ("m", "n")),),
        dimensions=(Dimension("m", 4096), Dimension("k", 4096, multiple_of=8), Dimension("n", 4096)),
        kind=kind,
    )


_ATTENTION = Task(
    name="attention",
    reference=_function("attention", "q, k, v", "return F.scaled_dot_product_attention(q, k, v, is_causal=True)"),
    function="attention",
    inputs=tuple(TensorInput(name, DType.F16, ("batch", "heads", "length", "depth")) for name in "qkv"),
    outputs=(TaskOutput("o", DType.F16, ("batch", "heads", "length", "depth")),),
    dimensions=(
        Dimension("batch", 4),
        Dimension("heads", 16),
        Dimension("length", 2048),
        Dimension("depth", 128, varies=False),
    ),
    kind=Kind.ATTENTION,
)

_CONVOLUTION = Task(
    name="conv_relu",
    reference=_function("conv_relu", "x, w, bias", "return F.relu(F.conv2d(x, w, bias, stride=2, padding=1))"),
    function="conv_relu",
    inputs=(
        TensorInput("x", DType.F32, ("n", "c", "h", "w_in"), memory_order=(0, 2, 3, 1)),
        TensorInput("w", DType.F32, ("co", "c", "kh", "kw"), parameter=True),
        TensorInput("bias", DType.F32, ("co",), parameter=True),
    ),
    outputs=(TaskOutput("y", DType.F32, ("n", "co", 56, 56)),),
    dimensions=tuple(
        Dimension(name, size, varies=name == "n")
        for name, size in (("n", 32), ("c", 64), ("h", 112), ("w_in", 112), ("co", 128), ("kh", 3), ("kw", 3))
    ),
    kind=Kind.CONVOLUTION,
)

_LOSS = Task(
    name="mse",
    reference=_function("mse", "a, b", "return F.mse_loss(a, b)"),
    function="mse",
    inputs=(TensorInput("a", DType.F32, ("n",)), TensorInput("b", DType.F32, ("n",))),
    outputs=(TaskOutput("loss", DType.F32, ()),),
    dimensions=(Dimension("n", 1 << 26),),
    kind=Kind.LOSS,
)

_GATHER = Task(
    name="embedding",
    reference=_function("embedding", "index, table", "return F.embedding(index, table)"),
    function="embedding",
    inputs=(
        TensorInput("index", DType.I64, ("tokens",), values=IndexValues("entries")),
        TensorInput("table", DType.F16, ("entries", "width"), parameter=True),
    ),
    outputs=(TaskOutput("y", DType.F16, ("tokens", "width")),),
    dimensions=(Dimension("tokens", 65536), Dimension("entries", 50257), Dimension("width", 1024, multiple_of=8)),
    kind=Kind.GATHER,
)

_SUM = Task(
    name="sum_rows",
    reference=_function("sum_rows", "x", "return x.sum(-1)"),
    function="sum_rows",
    inputs=(TensorInput("x", DType.F32, ("rows", "cols")),),
    outputs=(TaskOutput("y", DType.F32, ("rows",)),),
    dimensions=(Dimension("rows", 8192), Dimension("cols", 4096)),
    kind=Kind.REDUCTION,
)

_POOLING = replace(
    _CONVOLUTION,
    name="max_pool",
    function="max_pool",
    reference=_function("max_pool", "x", "return F.max_pool2d(x, 3, 2, 1)"),
    inputs=(TensorInput("x", DType.F32, ("n", "c", "h", "w_in")),),
    outputs=(TaskOutput("y", DType.F32, ("n", "c", 56, 56)),),
    kind=Kind.POOLING,
)

TASKS: dict[Kind, Task] = {
    Kind.POINTWISE: _rows("silu", Kind.POINTWISE, "return F.silu(x)"),
    Kind.REDUCTION: _SUM,
    Kind.NORMALISATION: LAYERNORM,
    Kind.SOFTMAX: _rows("softmax", Kind.SOFTMAX, "return torch.softmax(x, -1)"),
    Kind.MATMUL: _matmul(),
    Kind.CONVOLUTION: _CONVOLUTION,
    Kind.ATTENTION: _ATTENTION,
    Kind.SCAN: _rows("cumsum", Kind.SCAN, "return torch.cumsum(x, -1)", DType.F32),
    Kind.LOSS: _LOSS,
    Kind.GATHER: _GATHER,
    Kind.POOLING: _POOLING,
    Kind.OTHER: _rows("flip", Kind.OTHER, "return torch.flip(x, (-1,))"),
}

F32_MATMUL = _matmul(dtype=DType.F32)


# -- attempts and situations --

CASE = Case({"rows": 3, "cols": 1001}, 7)


def modelled(time_us: float) -> Modelled:
    terms = (
        ModelTerm("device memory", time_us, "16.8 MB read, 8.4 MB written, 25 % of sectors beyond the ideal"),
        ModelTerm("issue slots", time_us * 0.7, "41 instructions per element"),
        ModelTerm("shared memory", time_us * 0.1, ""),
    )
    return Modelled("H200", {"rows": 4096, "cols": 1024}, terms, time_us, 3.5, 0.75, 0, 8, 4096, 1)


def tuned() -> TuneResult:
    tried = tuple(
        ((("WARPS", warps), ("HELD", held)), 5.0 + warps + held) for warps in (1, 2, 4, 8) for held in (1, 2, 4)
    )
    return TuneResult(tried, tried[0][0], skipped=3, failed=1)


def attempt(
    number: int, stage: Stage, verdict: Verdict, time_us: float | None = None, parent: int | None = None
) -> Attempt:
    summary = (
        f"Step {number}: one warp per row, the row held in registers as 16-byte vectors, fewer barriers than before"
    )
    return Attempt(
        number=number,
        step=number,
        stage=stage,
        parent=parent,
        summary=summary,
        kernel=f"{number:020x}",
        verdict=verdict,
        measurement=modelled(time_us) if time_us is not None else None,
        tune=tuned() if time_us is not None else None,
    )


PASSED = Passed(
    tuple(
        CaseResult(Case({"rows": rows, "cols": 1024}, 1), CaseStatus.RIGHT, "H200 (emulated)", 0.3, emulated=True)
        for rows in (1, 3)
    )
)

NOT_BUILT = Rejected(
    NotBuilt(
        FailureReason.DIAGNOSTICS,
        tuple(
            Diagnostic(
                Severity.ERROR,
                "kernel.cu",
                line,
                3,
                f'identifier "value_{line}" is undefined',
                KERNEL.split("\n")[line - 1],
            )
            for line in (31, 44, 50, 60, 77, 82, 90, 95)
        ),
        (("WARPS", 4),),
    )
)

CRASHED = Rejected(
    Crashed(
        CASE,
        None,
        "",
        "layernorm_gelu",
        18,
        tuple(
            FindingRecord(
                kind,
                "layernorm_gelu<__nv_bfloat16>",
                18,
                line,
                5,
                ThreadRecord((2, 0, 0), (31, 0, 0)),
                where,
                "an access of 16 bytes",
                96,
                other_line=line + 4 if kind is FindingKind.RACE_SHARED else None,
                other_thread=ThreadRecord((2, 0, 0), (0, 0, 0)) if kind is FindingKind.RACE_SHARED else None,
            )
            for kind, line, where in (
                (FindingKind.OUT_OF_BOUNDS_GLOBAL, 87, "2 bytes after the end of x"),
                (FindingKind.RACE_SHARED, 54, "byte 0 of partial"),
                (FindingKind.MISALIGNED, 113, "y[0, 1]"),
            )
        ),
    ),
    (CaseResult(Case({"rows": 1, "cols": 8}, 1), CaseStatus.RIGHT, "H200 (emulated)", 0.2, emulated=True),),
)

WRONG = Rejected(
    WrongValues(
        CASE,
        (
            WrongOutput(
                "y",
                27,
                3003,
                Pattern.TAIL,
                "In every row the elements from column 992 on are wrong, those before are right.",
                1.93,
                0.0079,
                0.0038,
                tuple(WrongElement((row, 992), 0.5, 0.0, 0.0079) for row in range(4)),
            ),
        ),
        (Case({"rows": 1, "cols": 1024}, 1), Case({"rows": 4, "cols": 64}, 2)),
    )
)

EVIDENCE = "\n".join(
    [
        "modelled for H200: 41.2 us; device memory 41.2, issue slots 28.8, shared memory 3.1",
        "registers 40, occupancy 75 %, no spills",
    ]
    + [
        f"line {40 + i}: {20 - i / 3:.1f} % of instructions, {4 + i % 3}.0 sectors per request (ideal 4.0)"
        for i in range(50)
    ]
)


def situation(
    stage: Stage, task: Task = LAYERNORM, text: str = KERNEL, history: tuple[Attempt, ...] | None = None
) -> Situation:
    """A typical situation of a stage, with some history behind it."""
    past = history if history is not None else sample_history(8)
    best = next((one for one in reversed(past) if one.passed), None)
    verdicts = {Stage.REPAIR_BUILD: NOT_BUILT, Stage.REPAIR_CRASH: CRASHED, Stage.REPAIR_WRONG: WRONG}
    number = (past[-1].number if past else 0) + 1
    if stage is Stage.DRAFT:
        return Situation(task, stage, number)
    if stage.is_repair:
        failing = attempt(number - 1, Stage.STRUCTURE, verdicts[stage], parent=best.number if best else None)
        return Situation(task, stage, number, 0, best, text, failing, text, (*past[:-1], failing))
    evidence = EVIDENCE if stage is Stage.PROFILED else ""
    return Situation(task, stage, number, 0, best, text, history=past, evidence=evidence)


def sample_history(count: int) -> tuple[Attempt, ...]:
    """A draft that needs a repair, then steps of which every other one pays."""
    made: list[Attempt] = []
    best: int | None = None
    time_us = 60.0
    for number in range(1, count + 1):
        if number == 1:
            made.append(attempt(number, Stage.DRAFT, WRONG))
        elif number == 2:
            made.append(attempt(number, Stage.REPAIR_WRONG, PASSED, time_us))
            best = number
        elif number % 3 == 0:
            made.append(attempt(number, Stage.STRUCTURE, CRASHED, parent=best))
        elif number % 2 == 0:
            time_us *= 0.8
            made.append(attempt(number, Stage.STRUCTURE, PASSED, time_us, best))
            best = number
        else:
            made.append(attempt(number, Stage.STRUCTURE, PASSED, time_us * 1.1, best))
    return tuple(made)
