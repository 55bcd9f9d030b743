"""Exports of the gallery's kernels on a GPU box that has torch, nvcc and cmake, and nothing of tilewright's compiler.

    python benchmarks/export_on_gpu.py prepare exports.tar [RUN...]      here: exports --to torch and --to cuda
    python benchmarks/export_on_gpu.py run exports.tar [-o result.json]  there: builds, compares, times

Of a torch package: results against the reference in f64, a side stream, a CUDA graph, torch.compile, the refusal of a
call nobody built for, and what a call costs beside a built-in operator. Of a CUDA project: cmake and nvcc build it, its
test program runs, and the C function, called through ctypes, gives the same bits as the torch package.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RUNS = ("add_rmsnorm", "swiglu", "rotary", "linear_silu")
CALLS, ROUNDS = 2000, 7


def prepare(archive: Path, runs: list[str]) -> None:
    from tilewright.exports.cuda_project import Target, export
    from tilewright.exports.python_op import call_text, small_call
    from tilewright.exports.source import from_run
    from tilewright.exports.torch_package import covered_calls
    from tilewright.exports.variants import find_variants
    from tilewright.store import RunFolder

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = {}
        for run in runs or RUNS:
            source = from_run(RunFolder(ROOT / "gallery" / run))
            for target in (Target.TORCH, Target.CUDA):
                print(export(source, target, folder / f"{run}-{target.value}", f"tw_{run}"), file=sys.stderr)
            variants = find_variants(source.files, source.tuned, source.calls, ["sm_90a"])
            small = small_call(source, covered_calls(source, variants))
            texts = {"arguments": call_text(source, source.calls[0]), "small": call_text(source, small)}
            made[run] = {**texts, "function": source.op.name}
        (folder / "calls.json").write_text(json.dumps(made, indent=2))
        with tarfile.open(archive, "w") as tar:
            tar.add(folder, arcname=".")


# -- on the GPU --


def as_tuple(result: Any) -> tuple[Any, ...]:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def evaluated(torch: Any, text: str) -> tuple[Any, ...]:
    made: tuple[Any, ...] = eval(f"({text},)", {"torch": torch, "device": "cuda"})
    return made


def in_f64(torch: Any, values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in values)


def worst_error(torch: Any, own: tuple[Any, ...], plain: tuple[Any, ...], truth: tuple[Any, ...]) -> float:
    """The largest error over that of PyTorch's own result and one rounding of it."""
    worst = 0.0
    for one, other, exact in zip(own, plain, truth, strict=True):
        rounding = torch.finfo(one.dtype).eps if one.is_floating_point() else 0.0
        allowed = (other.double() - exact).abs().max() + rounding * exact.abs().max()
        worst = max(worst, float((one.double() - exact).abs().max() / allowed.clamp_min(1e-30)))
    return worst


def host_us(torch: Any, work: Callable[[], Any]) -> float:
    """What the calling thread spends on a call, in microseconds: the median of several rounds."""
    times = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(CALLS):
            work()
        times.append((time.perf_counter() - began) / CALLS * 1e6)
        torch.cuda.synchronize()
    return statistics.median(times)


def torch_row(torch: Any, folder: Path, run: str, call: dict[str, str]) -> dict[str, Any]:
    sys.path.insert(0, str(folder / f"{run}-torch"))
    package = importlib.import_module(f"tw_{run}")
    reference = getattr(importlib.import_module(f"tw_{run}.reference"), call["function"])
    function = getattr(package, call["function"])
    arguments, small = (evaluated(torch, call[which]) for which in ("arguments", "small"))
    row: dict[str, Any] = {"run": run}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a fall back to the reference would be one
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, of what its compiler imports
        own = as_tuple(function(*arguments))
        operator = getattr(getattr(torch.ops, f"tilewright_tw_{run}"), call["function"]).default
        again = as_tuple(operator(*arguments))
        plain, truth = (as_tuple(reference(*values)) for values in (arguments, in_f64(torch, arguments)))
        row["error_ratio"] = worst_error(torch, own, plain, truth)
        row["operator_equal"] = all(torch.equal(a, b) for a, b in zip(own, again, strict=True))
        row["side_stream_equal"] = _on_side_stream(torch, function, arguments, own)
        row["graph_equal"] = _in_graph(torch, function, arguments, own)
        compiled = torch.compile(lambda *values: function(*values), fullgraph=True)
        row["compiled_equal"] = all(torch.equal(a, b) for a, b in zip(own, as_tuple(compiled(*arguments)), strict=True))
    row["refusal"] = _refusal(torch, function, arguments)
    row.update(_overhead(torch, function, operator, small))
    return row


def _on_side_stream(torch: Any, function: Any, arguments: tuple[Any, ...], own: tuple[Any, ...]) -> bool:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        results = as_tuple(function(*arguments))
    stream.synchronize()
    return all(torch.equal(a, b) for a, b in zip(own, results, strict=True))


def _in_graph(torch: Any, function: Any, arguments: tuple[Any, ...], own: tuple[Any, ...]) -> bool:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = as_tuple(function(*arguments))
    for one in results:
        one.zero_()
    graph.replay()
    torch.cuda.synchronize()
    return all(torch.equal(a, b) for a, b in zip(own, results, strict=True))


def _refusal(torch: Any, function: Any, arguments: tuple[Any, ...]) -> str:
    """A call in a dtype that no file takes runs the reference and says so."""
    others = tuple(v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in arguments)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        function(*others)
    return str(said[0].message) if said else "nothing was said"


def _overhead(torch: Any, function: Any, operator: Any, small: tuple[Any, ...]) -> dict[str, float]:
    """On inputs so small that the GPU keeps up."""
    x = next(v for v in small if isinstance(v, torch.Tensor))
    y = torch.randn_like(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        function(*small)
        return {
            "call_us": host_us(torch, lambda: function(*small)),
            "operator_us": host_us(torch, lambda: operator(*small)),
            "torch_add_us": host_us(torch, lambda: torch.add(x, y)),
            "torch_add_again_us": host_us(torch, lambda: torch.add(x, y)),
        }


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int),
        ("rank", ctypes.c_int),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("stride", ctypes.POINTER(ctypes.c_int64)),
    )


def _c_tensor(torch: Any, tensor: Any) -> Any:
    names = "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 int64 int32 int16 int8 uint8 bool"
    dtype = names.split().index(str(tensor.dtype).removeprefix("torch."))
    sizes = (ctypes.c_int64 * max(tensor.dim(), 1))(*tensor.shape)
    steps = (ctypes.c_int64 * max(tensor.dim(), 1))(*tensor.stride())
    return ctypes.byref(_Tensor(tensor.data_ptr(), dtype, tensor.dim(), sizes, steps))


def _build_commands(project: Path, name: str) -> list[list[str]]:
    if shutil.which("cmake"):
        configure = ["cmake", "-S", ".", "-B", "out", "-DBUILD_SHARED_LIBS=ON"]
        return [configure, ["cmake", "--build", "out", "-j", "8"]]
    units = [path.name for path in sorted(project.glob("*_kernels_*.cu"))]
    flags = [
        "-std=c++17",
        "-O2",
        "--expt-relaxed-constexpr",
        "-gencode=arch=compute_90a,code=sm_90a",
        "-Xcompiler",
        "-fPIC",
    ]
    library = ["nvcc", *flags, "-shared", f"{name}.cpp", *units, "-o", f"out/lib{name}.so"]
    program = ["nvcc", *flags, f"test_{name}.cpp", f"out/lib{name}.so", "-Xlinker", "-rpath=$ORIGIN"]
    return [["mkdir", "-p", "out"], library, [*program, "-o", f"out/test_{name}"]]


def cuda_row(torch: Any, folder: Path, run: str, call: dict[str, str]) -> dict[str, Any]:
    project, name = folder / f"{run}-cuda", f"tw_{run}"
    began = time.perf_counter()
    for command in _build_commands(project, name):
        subprocess.run(command, cwd=project, check=True, stdout=subprocess.DEVNULL)
    row: dict[str, Any] = {"run": run, "cuda_build_s": time.perf_counter() - began}
    done = subprocess.run([str(project / "out" / f"test_{name}")], capture_output=True, text=True, check=False)
    row["test_program"] = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    library = ctypes.CDLL(str(project / "out" / f"lib{name}.so"))
    arguments = evaluated(torch, call["arguments"])
    wanted = as_tuple(getattr(importlib.import_module(name), call["function"])(*arguments))
    results = tuple(torch.empty_like(one) for one in wanted)
    given = [_c_tensor(torch, v) if isinstance(v, torch.Tensor) else ctypes.c_double(v) for v in arguments]
    needed = ctypes.c_size_t()
    assert getattr(library, f"{name}_workspace")(*given, ctypes.byref(needed)) == 0
    workspace = torch.empty(max(needed.value, 256), dtype=torch.uint8, device="cuda")
    outs = [_c_tensor(torch, one) for one in results]
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    last = (ctypes.c_void_p(workspace.data_ptr()), ctypes.c_size_t(workspace.numel()), stream)
    code = getattr(library, name)(*given, *outs, *last)
    torch.cuda.synchronize()
    row["code"] = code
    row["bits_equal"] = all(torch.equal(a, b) for a, b in zip(wanted, results, strict=True))
    return row


def run(archive: Path) -> list[dict[str, Any]]:
    import torch

    rows = []
    folder = Path(tempfile.mkdtemp())
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    for name, call in json.loads((folder / "calls.json").read_text()).items():
        row = torch_row(torch, folder, name, call)
        row.update(cuda_row(torch, folder, name, call))
        print(json.dumps(row, indent=2), flush=True)
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("prepare", "run"))
    parser.add_argument("archive", type=Path)
    parser.add_argument("runs", nargs="*")
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    if given.what == "prepare":
        prepare(given.archive, given.runs)
        return
    rows = run(given.archive)
    if given.output:
        from recording import write_result

        write_result(given.output, {"rows": rows})


if __name__ == "__main__":
    main()
