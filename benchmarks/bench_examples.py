"""Every example at a representative size, beside PyTorch eager, torch.compile and the vendor's library. Needs a GPU.

    python benchmarks/bench_examples.py [--out FILE] [--only NAME ...] [--samples 21] [--no-compile]

Cases, references and the measure of correctness are those of tests/examples; the sizes are here. A sample is one call
between two events, on copies of the inputs that are used in turn, after 512 MB have been written so that nothing is
left in L2; every candidate is called once a round, in random order, and the median is shown. The floor is the time in
which the GPU's memory could move the arguments and results once, or its arithmetic units do the multiplications,
whichever is longer, at the vendor's figures. Results are checked in the same run; a wrong one is shown and makes the
exit status 1.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

import tilewright
from recording import write_result
from tilewright.devices.cuda import driver_version, gpu_profile
from tilewright.kernel_file import Evaluation, parse, try_evaluate
from tilewright.records import GpuProfile
from tilewright.runtime import BuildFailed, Operation
from tilewright.runtime.specs import spec_of
from tilewright.toolchain import ToolchainError, build_many

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from examples.agreement import disagreement  # noqa: E402
from examples.all_cases import CASES  # noqa: E402
from examples.cases import Arguments, Case, as_tuple, integers, label, normal  # noqa: E402

F32, BF16, U8 = torch.float32, torch.bfloat16, torch.uint8
FLUSH_BYTES = 512 << 20
COPIES = 3  # of the inputs, used in turn
COMPILE_SECONDS = 80.0  # torch.compile is left out of the cases that come after this much of it
# Dense tensor cores with f32 sums at 16 bits, and f32 without tensor cores: the vendor's figures.
PEAK_TFLOPS = {"A100": (312.0, 19.5), "H100": (989.0, 67.0), "H200": (989.0, 67.0), "B200": (2250.0, 80.0)}

Make = Callable[[torch.device], Arguments]
Call = Callable[..., object]


@dataclass(frozen=True)
class Size:
    """One measurement of a case. `library` is a single vendor call that computes the same."""

    case: str
    label: str
    make: Make
    flop: float = 0.0
    library: Call | None = None


@dataclass(frozen=True)
class Row:
    """What was measured. Times are medians in microseconds; a candidate that did not run is absent."""

    case: str
    size: str
    file: str
    choice: dict[str, int | bool]
    wrong: str | None
    floor_us: float
    floor_is: str
    bytes: int
    flop: float
    median_us: dict[str, float]
    least_us: dict[str, float]


# -- what is measured --


def _pointwise(case: str, shape: tuple[int, ...], dtype: torch.dtype = BF16) -> Size:
    return Size(case, label(shape, dtype), lambda d: (normal(d, "x", shape, dtype),))


def _with_vectors(case: str, shape: tuple[int, ...], *more: object, axis: int = -1, vectors: int = 1) -> Size:
    """x, vectors along one of its axes, and numbers."""

    def make(device: torch.device) -> Arguments:
        along = [normal(device, f"v{i}", (shape[axis],), BF16, mean=1.0) for i in range(vectors)]
        return (normal(device, "x", shape, BF16), *along, *more)

    return Size(case, label(shape, BF16), make)


def _add_rmsnorm(device: torch.device) -> Arguments:
    shape = (8192, 4096)
    return (
        normal(device, "x", shape, BF16),
        normal(device, "r", shape, BF16),
        normal(device, "w", shape[1:], BF16),
        1e-6,
    )


def _masked(device: torch.device) -> Arguments:
    hidden = torch.ones((1024, 1024), dtype=torch.bool, device=device).triu(1)
    mask = torch.zeros((1024, 1024), dtype=BF16, device=device).masked_fill(hidden, float("-inf"))
    return normal(device, "x", (8, 16, 1024, 1024), BF16), mask


def _matmul(case: str, m: int, n: int, k: int, dtype: torch.dtype = BF16) -> Size:
    def make(device: torch.device) -> Arguments:
        return normal(device, "a", (m, k), dtype), normal(device, "b", (k, n), dtype)

    return Size(case, label((m, n, k), dtype), make, 2.0 * m * n * k, torch.mm)


def _linear(case: str, m: int, n: int, k: int) -> Size:
    def make(device: torch.device) -> Arguments:
        w = normal(device, "w", (n, k), BF16, deviation=k**-0.5)
        return normal(device, "x", (m, k), BF16), w, normal(device, "bias", (n,), BF16)

    return Size(case, label((m, n, k), BF16), make, 2.0 * m * n * k)


SIZES = (
    _pointwise("silu", (16384, 4096)),
    _pointwise("silu", (16384, 4096), F32),
    _with_vectors("bias_gelu", (16384, 4096)),
    _with_vectors("layernorm", (16384, 1024), 1e-5, vectors=2),
    _with_vectors("layernorm", (4096, 16384), 1e-5, vectors=2),
    _with_vectors("layernorm_gelu", (32768, 1024), 1e-5, vectors=2),
    Size("add_rmsnorm", "8192x4096-bf16", _add_rmsnorm),
    Size("softmax_mask", "8x16x1024x1024-bf16", _masked),
    _pointwise("cluster_softmax", (512, 131072)),
    _pointwise("row_sum", (16384, 4096)),
    _pointwise("grid_sum", (1 << 26,), F32),
    _pointwise("argmax", (16384, 4096)),
    Size("histogram", "67108864-u8", lambda d: (integers(d, "x", (1 << 26,), U8, 0, 256),)),
    _pointwise("cumsum", (4096, 16384), F32),
    _pointwise("transpose", (8192, 8192)),
    _with_vectors("channels_last_bias_relu", (64, 256, 56, 56), axis=1),
    Size("l2_normalize", "8192x8192-bf16", lambda d: (normal(d, "x", (8192, 8192), BF16), 1e-12)),
    _pointwise("quantize_rows", (16384, 4096)),
    _matmul("matmul_mma", 4096, 4096, 4096),
    _matmul("matmul_cute_sm80", 4096, 4096, 4096),
    _matmul("matmul_cute_sm90", 4096, 4096, 4096),
    _matmul("matmul_wgmma_tma", 4096, 4096, 4096),
    _matmul("matmul_wgmma_tma", 8192, 8192, 8192),
    _matmul("matmul_wgmma_tma", 1024, 1024, 1024),
    _matmul("matmul_splitk", 256, 256, 16384, F32),
    _linear("matmul_bias_silu", 4096, 4096, 4096),
    _linear("linear_gelu_library", 4096, 4096, 4096),
)
# Cases that measure what another one does: the same file, or files that have cases of their own.
REPEATED = {"row_sum-integers", "grid_sum-integers", "cumsum-integers", "matmul"}


def sizes_of(cases: Iterable[Case]) -> Iterator[tuple[Case, Size]]:
    """The sizes above, and for a case that has none its call with the most elements."""
    for case in cases:
        known = [size for size in SIZES if size.case == case.name]
        if not known and case.name not in REPEATED:
            largest = max(case.calls, key=lambda call: _elements(call.make(torch.device("meta"))))
            known = [Size(case.name, largest.label, largest.make)]
        for size in known:
            yield case, size


def _elements(arguments: Arguments) -> int:
    return sum(a.numel() for a in arguments if isinstance(a, torch.Tensor))


# -- building --


def build_all(pairs: list[tuple[Case, Size]], gpu: GpuProfile) -> float:
    """Fill the build cache on all cores; the calls then only read it. Answers the seconds it took."""
    start = time.perf_counter()
    evaluations = (_first_evaluation(case, size, gpu) for case, size in pairs)
    requests = {e.build_request() for e in evaluations if e is not None} - {None}
    build_many(sorted(requests, key=lambda request: "cute" not in request.source))  # the slow ones first
    return time.perf_counter() - start


def _first_evaluation(case: Case, size: Size, gpu: GpuProfile) -> Evaluation | None:
    values = size.make(torch.device("meta"))
    for path in case.paths():
        file = parse(path.read_text(), path.name, allow_library=case.library)
        names = [parameter.name for parameter in file.plan.op.parameters]
        specs = [spec_of(value) if isinstance(value, torch.Tensor) else value for value in values]
        outcome = try_evaluate(file, dict(zip(names, specs, strict=False)), gpu)
        if isinstance(outcome, Evaluation):
            return outcome
    return None


# -- measuring --


class Compiler:
    """torch.compile within a time: where it fails or time is up, the candidate is left out."""

    def __init__(self, seconds: float) -> None:
        self.left = seconds
        self.problem: str | None = None
        self._worked = False

    def compiled(self, function: Call, arguments: Arguments) -> Call | None:
        if self.left <= 0 or (self.problem is not None and not self._worked):
            return None
        start = time.perf_counter()
        try:
            result = torch.compile(function, dynamic=False)
            result(*arguments)
            torch.cuda.synchronize()
        except Exception as error:  # whatever a compiler and its tools may raise: it is not what is judged here
            self.problem = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
            return None
        finally:
            self.left -= time.perf_counter() - start
        self._worked = True
        return result


def times_us(candidates: dict[str, Call], copies: list[Arguments], fresh: bool, samples: int) -> dict[str, list[float]]:
    """Event times of each candidate. With `fresh`, every call gets new copies: the op changes its arguments."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    for call in candidates.values():
        for _ in range(2):
            call(*(_copy(copies[0]) if fresh else copies[0]))
    found: dict[str, list[float]] = {name: [] for name in candidates}
    names = list(candidates)
    for sample in range(samples):
        random.shuffle(names)
        marks: dict[str, tuple[torch.cuda.Event, torch.cuda.Event]] = {}
        for number, name in enumerate(names):
            arguments = copies[(sample + number) % len(copies)]
            arguments = _copy(arguments) if fresh else arguments
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            flush.fill_(sample % 256)
            start.record()
            candidates[name](*arguments)
            end.record()
            marks[name] = start, end
        torch.cuda.synchronize()
        for name, (start, end) in marks.items():
            found[name].append(1e3 * start.elapsed_time(end))
    return found


def _copy(arguments: Arguments) -> Arguments:
    return tuple(a.clone() if isinstance(a, torch.Tensor) else a for a in arguments)


def measure(case: Case, size: Size, gpu: GpuProfile, compiler: Compiler, samples: int) -> Row:
    operation = tilewright.load(case.paths(), strict=True)
    original = size.make(torch.device("cuda"))
    changed = [i for i, parameter in enumerate(operation.op.parameters) if parameter.in_place]
    wrong, moved = _check(case, operation, original, changed)
    candidates: dict[str, Call] = {"ours": operation, "eager": case.reference}
    compiled = compiler.compiled(case.reference, original)
    if compiled is not None:
        candidates["compiled"] = compiled
    if size.library is not None:
        candidates["library"] = size.library
    copies = [_copy(original) for _ in range(COPIES)]
    samples_us = times_us(candidates, copies, bool(changed), samples)
    explained = operation.explain(*original)
    floor_us, floor_is = floor(gpu, moved, size.flop, original[0].dtype)
    return Row(
        case.name,
        size.label,
        Path(str(explained.file)).name,
        dict(explained.choice),
        wrong,
        floor_us,
        floor_is,
        moved,
        size.flop,
        {name: statistics.median(values) for name, values in samples_us.items()},
        {name: min(values) for name, values in samples_us.items()},
    )


def _check(case: Case, operation: Operation, original: Arguments, changed: list[int]) -> tuple[str | None, int]:
    """What is wrong with the results, and the bytes that must move: each argument in, each result out."""
    given = _copy(original)
    answered = operation(*given)
    results = () if answered is None else as_tuple(answered)
    results += tuple(given[i] for i in changed)
    torch.cuda.synchronize()
    tensors = [a for a in original if isinstance(a, torch.Tensor)]
    return disagreement(case, original, results), sum(t.nbytes for t in (*tensors, *results))


def floor(gpu: GpuProfile, moved: int, flop: float, dtype: torch.dtype) -> tuple[float, str]:
    """Microseconds below which no kernel can be on this GPU, and what sets them; 0 where the GPU is unknown."""
    memory_us = moved / gpu.bandwidth_gbs / 1e3 if gpu.bandwidth_gbs else 0.0
    peaks = next((peaks for name, peaks in PEAK_TFLOPS.items() if name in gpu.name), None)
    flop_us = flop / (peaks[dtype == F32] * 1e6) if peaks is not None else 0.0
    return (flop_us, "arithmetic") if flop_us > memory_us else (memory_us, "memory")


# -- reporting --


def table(rows: list[Row]) -> Iterator[str]:
    columns = ("ours", "eager", "compiled", "library")
    yield f"{'case':<24}{'size':<22}{'floor':>9}" + "".join(f"{c:>10}" for c in columns) + "   of floor  vs best  rate"
    for row in rows:
        ours = row.median_us["ours"]
        others = [us for name, us in row.median_us.items() if name != "ours"]
        times = "".join(f"{row.median_us[c]:>10.1f}" if c in row.median_us else f"{'-':>10}" for c in columns)
        rate = f"{row.flop / ours / 1e6:.0f} TFLOP/s" if row.flop else f"{row.bytes / ours / 1e3:.0f} GB/s"
        of_floor = f"{row.floor_us / ours:>9.0%}" if row.floor_us else f"{'-':>9}"
        yield f"{row.case:<24}{row.size:<22}{row.floor_us:>9.1f}{times}{of_floor}{min(others) / ours:>9.2f}x  {rate}"
        if row.wrong is not None:
            yield f"    WRONG: {row.wrong}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="also write the numbers to this JSON file")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="cases whose name contains one of these")
    parser.add_argument("--samples", type=int, default=21)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device, and torch sees none")
    begun = time.perf_counter()
    gpu = gpu_profile(0)
    wanted = [case for case in CASES if case.runs_on(gpu.cc) and _is_wanted(case, options.only)]
    pairs = list(sizes_of(wanted))
    if not pairs:
        raise SystemExit(f"no case for compute capability {gpu.cc} has {options.only} in its name")
    build_seconds = build_all(pairs, gpu)
    print(f"{gpu.name}, torch {torch.__version__}, {len(pairs)} measurements, builds {build_seconds:.1f} s", flush=True)
    compiler = Compiler(0.0 if options.no_compile else COMPILE_SECONDS)
    rows: list[Row] = []
    unbuilt: list[str] = []
    for case, size in pairs:
        try:
            rows.append(measure(case, size, gpu, compiler, options.samples))
        except (BuildFailed, ToolchainError) as error:  # headers that are missing here must not cost the other rows
            unbuilt.append(f"{case.name} {size.label}: {str(error).splitlines()[0]}")
            continue
        torch.compiler.reset()
        torch.cuda.empty_cache()
        print(f"  {case.name} {size.label}: {rows[-1].median_us['ours']:.1f} us", file=sys.stderr, flush=True)
    print("\n".join([*table(rows), *[f"NOT BUILT: {reason}" for reason in unbuilt]]))
    if compiler.problem is not None:
        print(f"torch.compile failed: {compiler.problem}")
    print(f"medians of {options.samples}, microseconds; {time.perf_counter() - begun:.0f} s in all")
    if options.out is not None:
        record = {
            "gpu": gpu.name,
            "driver": "CUDA {}.{}".format(*driver_version()),
            "torch": torch.__version__,
            "samples": options.samples,
            "build_seconds": build_seconds,
            "compile_problem": compiler.problem,
            "rows": [asdict(row) for row in rows],
            "not_built": unbuilt,
        }
        write_result(options.out, record)
    if unbuilt or any(row.wrong is not None for row in rows):
        raise SystemExit(1)


def _is_wanted(case: Case, only: list[str] | None) -> bool:
    return only is None or any(part in case.name for part in only)


if __name__ == "__main__":
    main()
