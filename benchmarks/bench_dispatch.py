"""What choosing a kernel file costs: the first evaluation, and a repeated selection while scalars change.

Run `python benchmarks/bench_dispatch.py`; `--json` prints the numbers alone. No GPU is needed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from tilewright.kernel_file import ConstantSets, Dispatcher, Selected, Signature, evaluate, parse
from tilewright.records import PROFILES, DType, TensorSpec

ROUNDS = 7
PLAN = """\
//! op      norm(x, weight, bias, mask?, dim: int, eps: float, scale: float = 1.0) -> y
//! out     y: x.dtype[x.shape]
//! let     cols = x.shape[-1], rows = x.numel / cols
//! need    dim == 1 and x.dtype in [f16, bf16] and weight.dtype == x.dtype and bias.dtype == x.dtype
//! need    cols % 8 == 0 and cols <= 16384
//! tune    WARPS = 8 | 4 | 16
//! tune    ROWS = 4 | 2 | 1
//! need    WARPS * ROWS <= 32
//! let     inverse = scale / cols
//! launch  norm<WARPS><<<ceil_div(rows, ROWS), WARPS * 32>>>(x, weight, bias, mask, y, cols, ROWS, inverse, eps)
template <int WARPS> __global__ void norm(const __half* x, const __half* weight, const __half* bias, const __half* mask,
    __half* y, int cols, int rows, float inverse, float eps) {}
"""


@dataclass(frozen=True)
class Row:
    what: str
    median_us: float
    best_us: float


def measured(what: str, call: Callable[[], object], number: int) -> Row:
    call()
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(number):
            call()
        rounds.append((time.perf_counter() - start) / number * 1e6)
    return Row(what, round(statistics.median(rounds), 3), round(min(rounds), 3))


def rows() -> list[Row]:
    file, gpu = parse(PLAN, "norm.cu"), PROFILES["H200"]
    dispatcher = Dispatcher([file], gpu, constant_sets=ConstantSets())
    signature = Signature(file.plan.op)
    wide, narrow = (TensorSpec.contiguous(DType.BF16, shape) for shape in ((4096, 1024), (1024,)))
    calls = [
        signature.arguments(
            {"x": wide, "weight": narrow, "bias": narrow, "dim": 1, "eps": 1e-5 + i * 1e-9, "scale": 1.0 + i}
        )
        for i in range(64)
    ]
    keys = [dispatcher.key(call) for call in calls]
    turn = iter(range(10**9))

    def select() -> object:
        return dispatcher.select(calls[next(turn) % 64])

    def select_by() -> object:
        i = next(turn) % 64
        return dispatcher.select_by(keys[i], calls[i], lambda: calls[i])

    selected = select()
    assert isinstance(selected, Selected)
    evaluated = dispatcher.evaluations
    result = [
        measured("parse a file", lambda: parse(PLAN, "norm.cu"), 20),
        measured("evaluate, file known", lambda: evaluate(file, calls[0], gpu), 300),
        measured(
            "make a call regular", lambda: signature.normalise((wide, narrow, narrow, None, 1, 1e-5, 1.0), {}), 5000
        ),
        measured("key of the arguments", lambda: dispatcher.key(calls[0]), 5000),
        measured("late values (1 let, 2 arguments)", lambda: selected.evaluation.late_values(calls[0]), 5000),
        measured("repeated select, other scalars each time", select, 5000),
        measured("repeated select by the caller's key", select_by, 5000),
    ]
    assert dispatcher.evaluations == evaluated, "a repeated select evaluated the file again"
    return result


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--json", action="store_true", help="print JSON only")
    as_json = arguments.parse_args().json
    found = rows()
    if not as_json:
        print(f"{'':44}{'median us':>12}{'best us':>12}")
        for row in found:
            print(f"{row.what:44}{row.median_us:12.2f}{row.best_us:12.2f}")
    print(json.dumps([asdict(row) for row in found]))


if __name__ == "__main__":
    main()
