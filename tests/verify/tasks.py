"""Tasks for the referee's tests, and one source that holds all their references: one child serves them all."""

from __future__ import annotations

from tilewright.records import (
    Dimension,
    DType,
    IndexValues,
    NumberInput,
    ScalarType,
    SizeFormula,
    Task,
    TaskOutput,
    TensorInput,
)

# A reference is called by name, so the names of the inputs say which op is meant.
SOURCE = """\
import inspect
import torch
import torch.nn.functional as F

def double(v):
    return 2 * v + 1

def mean(samples):
    return samples.mean(-1)

def total(terms):
    return terms.sum().reshape(1)

def layernorm(x, weight, bias, eps=1e-5):
    return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)

def softmax(logits):
    return torch.softmax(logits, -1)

def matmul(a, b):
    return a @ b

def argmax(scores):
    return scores.argmax(-1)

def accumulate(y, delta):
    y += delta

def rows(table, index):
    return table[index]

def identity_index(flags):
    return torch.arange(flags.shape[0], dtype=torch.int32, device=flags.device)

def fails(doomed):
    raise RuntimeError("no such luck")

def picky(even):
    if even.shape[-1] % 2:
        raise ValueError("odd sizes are not for me")
    return even.neg()

def convolve(signal, filters):
    return F.conv1d(signal, filters)

def by_rank(pile):
    return pile * pile.dim()

OPS = (
    double, mean, total, layernorm, softmax, matmul, argmax, accumulate, rows, identity_index, picky, fails, by_rank,
    convolve
)

def any_op(**inputs):
    (op,) = [one for one in OPS if {*inspect.signature(one).parameters} == {*inputs}]
    return op(**inputs)
"""
FUNCTION = "any_op"


def task(
    name: str,
    inputs: dict[str, str],
    output: str,
    dimensions: dict[str, int],
    numbers: dict[str, float] | None = None,
    **more: object,
) -> Task:
    """Inputs and the output as `f32 rows cols`; every dimension varies."""
    tensors = []
    for one, text in inputs.items():
        dtype, *names = text.split()
        tensors.append(TensorInput(one, DType(dtype), tuple(names)))
    given = tuple(NumberInput(one, ScalarType.FLOAT, value) for one, value in (numbers or {}).items())
    outputs: tuple[TaskOutput, ...] = ()
    if output:
        dtype, *names = output.split()
        shape = tuple(int(one) if one.isdigit() else one for one in names)
        outputs = (TaskOutput("out", DType(dtype), shape),)
    sizes = tuple(Dimension(one, size) for one, size in dimensions.items())
    return Task(name, SOURCE, FUNCTION, (*tensors, *given), outputs, sizes, **more)  # type: ignore[arg-type]


DOUBLE = task("double", {"v": "f32 n"}, "f32 n", {"n": 1 << 20})
MEAN = task("mean", {"samples": "f32 rows cols"}, "f32 rows", {"rows": 512, "cols": 4096})
TOTAL = task("total", {"terms": "f32 n"}, "f32 1", {"n": 1 << 20})
LAYERNORM = task(
    "layernorm",
    {"x": "f32 rows cols", "weight": "f32 cols", "bias": "f32 cols"},
    "f32 rows cols",
    {"rows": 4096, "cols": 1024},
    {"eps": 1e-5},
)
SOFTMAX = task("softmax", {"logits": "f32 rows cols"}, "f32 rows cols", {"rows": 4096, "cols": 1024})
MATMUL = task("matmul", {"a": "f32 m k", "b": "f32 k n"}, "f32 m n", {"m": 1024, "k": 1024, "n": 1024})
MATMUL_BF16 = task("matmul", {"a": "bf16 m k", "b": "bf16 k n"}, "bf16 m n", {"m": 1024, "k": 1024, "n": 1024})
CONVOLVE = Task(
    "convolve",
    SOURCE,
    FUNCTION,
    (
        TensorInput("signal", DType.F32, ("batch", "channels", "length")),
        TensorInput("filters", DType.F32, ("outputs", "channels", "taps")),
    ),
    (TaskOutput("out", DType.F32, ("batch", "outputs", "places")),),
    (
        Dimension("batch", 4),
        Dimension("channels", 4),
        Dimension("length", 64, at_least=3),
        Dimension("outputs", 8),
        Dimension("taps", 3, varies=False),
        Dimension("places", 62, formula=SizeFormula.parse("length - taps + 1")),
    ),
)
ARGMAX = task("argmax", {"scores": "bf16 rows cols"}, "i64 rows", {"rows": 512, "cols": 1000})
IDENTITY = task("identity_index", {"flags": "f32 n"}, "i32 n", {"n": 4096})
FAILS = task("double", {"doomed": "f32 n"}, "f32 n", {"n": 1000})
PICKY = task("picky", {"even": "f32 rows cols"}, "f32 rows cols", {"rows": 512, "cols": 1000})
# A claim that is not true: at another rank the reference does something else.
BY_RANK = task(
    "by_rank", {"pile": "f32 rows cols"}, "f32 rows cols", {"rows": 512, "cols": 1000}, leading=(("pile", 2),)
)
ACCUMULATE = Task(
    "accumulate",
    SOURCE,
    FUNCTION,
    (TensorInput("y", DType.F32, ("n",), in_place=True), TensorInput("delta", DType.F32, ("n",))),
    (),
    (Dimension("n", 1 << 16),),
)
ROWS = Task(
    "rows",
    SOURCE,
    FUNCTION,
    (
        TensorInput("table", DType.F32, ("entries", "width")),
        TensorInput("index", DType.I64, ("n",), IndexValues("entries")),
    ),
    (TaskOutput("out", DType.F32, ("n", "width")),),
    (Dimension("entries", 1000), Dimension("width", 64), Dimension("n", 5000)),
)
