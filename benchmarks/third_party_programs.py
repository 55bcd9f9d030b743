"""Programs that other people's compilers and libraries made, run in the emulator and compared with PyTorch.

    python benchmarks/third_party_programs.py [--triton-python PATH [--cc 90]] [--only NAME ...] [--out FILE]

So that the emulator's semantics are not only ours: CUTLASS's CuTe tutorials, taken from the nvidia-cutlass wheel, and
Triton kernels, compiled by the Python given (one with triton 3.x installed; no GPU is needed). Neither is part of this
project. Reports how many give the right result, and what the checkers said of them.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cutlass_tutorials import TUTORIALS, Copy, Gemm, device_source, programs_of, tutorial_folder
from tilewright import __version__
from tilewright.devices.cuda.torch_dtypes import DTYPE_OF_TORCH
from tilewright.ptx.global_memory import GlobalMemory
from tilewright.ptx.launching import LaunchOptions, LaunchRequest
from tilewright.ptx.program import load_program
from tilewright.ptx.tensor_maps import encoded_map
from tilewright.records import Build, BuildRequest, FindingRecord, TensorMap
from tilewright.toolchain import build

SEEDS = (None, 1, 2)
_MAP_ALIGNMENT = 64  # of a tensor map among the parameters


@dataclass(frozen=True)
class Mapped:
    """A tensor that is given as a tensor map."""

    tensor: torch.Tensor
    box: tuple[int, ...]
    swizzle: int


Value = torch.Tensor | Mapped | int | float


@dataclass(frozen=True)
class Result:
    """A tensor the program fills; right within `tolerance` times the greatest magnitude of what is expected."""

    expected: torch.Tensor
    tolerance: float = 0.0
    start: torch.Tensor | None = None  # None: nothing is in it yet


@dataclass(frozen=True)
class Task:
    """One launch: arguments in order, numbers as `struct` packs them, results among them."""

    grid: tuple[int, int, int]
    arguments: tuple[Value | Result, ...]


@dataclass(frozen=True)
class Program:
    name: str
    origin: str
    ptx: str
    kernel: str
    threads: int
    dynamic_smem_bytes: int
    task: Task
    hidden_pointers: int = 0  # at the end of the parameter list, null
    cluster: int = 1


@dataclass(frozen=True)
class Row:
    """What came of a program."""

    name: str
    origin: str
    right: bool
    problem: str
    findings: tuple[str, ...]
    thread_instructions: int
    ready_ms: float
    run_ms: float


# -- one program --


def run(program: Program) -> Row:
    row = Row(program.name, program.origin, False, "", (), 0, 0.0, 0.0)
    started = time.perf_counter()
    try:
        loaded = load_program(program.ptx)
        memory, block, results = _memory(program)
        findings: dict[str, None] = {}
        for seed in SEEDS:
            memory, block, results = _memory(program)
            request = LaunchRequest(
                kernel=program.kernel,
                grid=program.task.grid,
                block=(program.threads, 1, 1),
                dynamic_smem_bytes=program.dynamic_smem_bytes,
                parameters=block,
                cluster=(program.cluster, 1, 1) if program.cluster > 1 else None,
                options=LaunchOptions(seed=seed),
            )
            launch = loaded.launch(memory, request)
            if seed is None:
                total_ms = (time.perf_counter() - started) * 1e3
                row = replace(
                    row,
                    thread_instructions=launch.thread_instructions,
                    ready_ms=total_ms - launch.seconds * 1e3,
                    run_ms=launch.seconds * 1e3,
                )
            findings.update(dict.fromkeys(map(_line, launch.findings)))
            row = replace(row, findings=tuple(findings))
            if not launch.completed:
                return replace(row, problem="stopped")
            for name, result in results.items():
                wrong = _wrong(result, memory.bytes(name))
                if wrong is not None:
                    return replace(row, problem=f"{name} with schedule {seed}: {wrong}")
    except Exception as error:  # whatever one program brings to light, the others are still to be run
        return replace(row, problem=f"{type(error).__name__}: {error}"[:400])
    return replace(row, right=True)


def _memory(program: Program) -> tuple[GlobalMemory, bytes, dict[str, Result]]:
    memory = GlobalMemory()
    block = bytearray()
    results: dict[str, Result] = {}
    for position, argument in enumerate(program.task.arguments):
        name = f"argument{position}"
        match argument:
            case torch.Tensor():
                _append(block, "<Q", _add(memory, name, argument, _bytes(argument), False))
            case Mapped():
                block += bytes(-len(block) % _MAP_ALIGNMENT)
                block += _map(memory, name, argument)
            case Result(expected=expected, start=start):
                results[name] = argument
                _append(block, "<Q", _add(memory, name, expected, None if start is None else _bytes(start), True))
            case int():
                _append(block, "<i", argument)
            case float():
                _append(block, "<f", argument)
    for _ in range(program.hidden_pointers):
        _append(block, "<Q", 0)
    return memory, bytes(block), results


def _map(memory: GlobalMemory, name: str, mapped: Mapped) -> bytes:
    tensor = mapped.tensor
    address = _add(memory, name, tensor, _bytes(tensor), False)
    strides = tuple(stride * tensor.element_size() for stride in tensor.stride()[-2::-1])
    shape, box = tuple(tensor.shape)[::-1], mapped.box[::-1]
    record = TensorMap(
        name, name, DTYPE_OF_TORCH[tensor.dtype], shape, strides, box, (1,) * len(box), mapped.swizzle, False, 0
    )
    return encoded_map(record, address)


def _append(block: bytearray, code: str, value: Any) -> None:
    block += bytes(-len(block) % struct.calcsize(code))
    block += struct.pack(code, value)


def _add(memory: GlobalMemory, name: str, tensor: torch.Tensor, data: np.ndarray | None, writable: bool) -> int:
    return memory.add(
        name,
        tensor.numel() * tensor.element_size(),
        element_bytes=tensor.element_size(),
        shape=tuple(tensor.shape),
        stride=tuple(tensor.contiguous().stride()),
        writable=writable,
        initialised=data is not None,
        data=data,
    )


def _bytes(tensor: torch.Tensor) -> np.ndarray:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().copy()


def _wrong(result: Result, data: np.ndarray) -> str | None:
    expected = result.expected
    found = torch.from_numpy(np.array(data)).view(expected.dtype).reshape(expected.shape)
    if not expected.is_floating_point():
        differing = int((found != expected).sum())
        return f"{differing} of {expected.numel()} elements differ" if differing else None
    error = float((found.double() - expected.double()).abs().max())
    allowed = result.tolerance * float(expected.double().abs().max())
    return None if error <= allowed else f"an error of {error:.3g}, allowed {allowed:.3g}"


def _line(finding: FindingRecord) -> str:
    """A finding in a line, without what differs from one copy of an unrolled instruction to the next."""
    source = next((f"{Path(place.file).name}:{place.line}" for place in finding.places), f"PTX {finding.ptx_line}")
    return f"{finding.kind.value} at {source} ({finding.ptx_text.split()[0]})"


# -- CUTLASS --


def cutlass_programs(wanted: Callable[[str], bool], folder: Path | None) -> Iterator[Program | Row]:
    if folder is None:
        print("no nvidia-cutlass wheel in this environment; its tutorials are left out", file=sys.stderr)
        return
    for tutorial in TUTORIALS:
        programs = [program for program in programs_of(tutorial) if wanted(program.name)]
        if not programs:
            continue
        kernels = tuple(program.name for program in programs_of(tutorial))
        arch = "sm_90a" if tutorial.startswith("hopper/") else "sm_80"
        made = build(BuildRequest(device_source(folder, tutorial), (), kernels, arch, f"{Path(tutorial).name}.cu"))
        for program in programs:
            if isinstance(made, Build):
                yield _cutlass_program(program, made.ptx)
            else:
                yield Row(program.name, "CUTLASS", False, f"not built: {made}", (), 0, 0.0, 0.0)


def _cutlass_program(program: Gemm | Copy, ptx: str) -> Program:
    if isinstance(program, Copy):
        m, n = (528, 300) if program.any_size else (256, 512)
        source = _normal("s", n, m)  # column-major: as PyTorch sees it, transposed
        task = Task((-(-m // 128), -(-n // 64), 1), (source, Result(source), m, n))
        return Program(program.name, "CUTLASS", ptx, program.name, 256, 0, task)
    dtype = torch.float16 if program.half else torch.float32
    m, n, k = 256, 128, 192
    a, b = _normal("a", m, k).to(dtype), _normal("b", n, k).to(dtype)
    expected = (b.double() @ a.double().t()).to(dtype)  # C is column-major
    start = torch.zeros_like(expected)
    result = Result(expected, 2e-2 if program.half else 2e-6, start)
    inputs: list[Value] = [a, b] if program.transposed else [a.t().contiguous(), b.t().contiguous()]
    if program.maps:  # as CuTe cuts these tiles: whole rows of k, or atoms of eight
        box = (128, 64) if program.transposed else (8, 64)
        inputs = [Mapped(one, box, 128) for one in inputs if isinstance(one, torch.Tensor)]
    strides = (k, k, m) if program.transposed else (m, n, m)
    task = Task((m // 128, n // 128, 1), (*inputs, result, m, n, k, *strides))
    return Program(
        program.name, "CUTLASS", ptx, program.name, program.threads, program.dynamic_smem_bytes, task,
        cluster=program.cluster,
    )  # fmt: skip


# -- Triton --


def triton_programs(python: str, cc: int, names: Sequence[str]) -> Iterator[Program | Row]:
    script = Path(__file__).with_name("triton_programs.py")
    done = subprocess.run([python, str(script), str(cc), *names], capture_output=True, text=True, timeout=1200)
    if done.returncode != 0:
        raise SystemExit(f"{python} {script.name} failed; it needs triton 3.x:\n{done.stderr[-2000:]}")
    answer = json.loads(done.stdout)
    for name, made in answer["programs"].items():
        origin = f"Triton {answer['version']}"
        if "error" in made:
            yield Row(name, origin, False, f"not built: {made['error']}", (), 0, 0.0, 0.0)
            continue
        threads, shared = 32 * made["warps"], made["shared_bytes"]
        declared = made["ptx"].partition(")")[0].count(".param")
        hidden = declared - len(made["types"])
        yield Program(name, origin, made["ptx"], made["kernel"], threads, shared, TASKS[name](), hidden)


def _normal(name: str, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    return torch.randn(shape, generator=generator)


def _integers(name: str, low: int, high: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def _vector_add() -> Task:
    x, y = _normal("x", 1000), _normal("y", 1000)
    return Task((4, 1, 1), (x, y, Result(x + y), 1000))


def _softmax() -> Task:
    x = _normal("x", 7, 1000)
    return Task((7, 1, 1), (x, Result(x.double().softmax(1).float(), 2e-6), 1000))


def _layernorm() -> Task:
    x, weight, bias = (t.bfloat16() for t in (_normal("x", 5, 777), _normal("w", 777), _normal("b", 777)))
    expected = torch.nn.functional.layer_norm(x.double(), (777,), weight.double(), bias.double(), 1e-5)
    return Task((5, 1, 1), (x, weight, bias, Result(expected.bfloat16(), 8e-3), 777, 1e-5))


def _row_sum() -> Task:
    x = _normal("x", 6, 3001)
    return Task((6, 1, 1), (x, Result(x.double().sum(1).float(), 2e-6), 3001))


def _column_sum() -> Task:
    x = _normal("x", 201, 99)
    return Task((4, 1, 1), (x, Result(x.double().sum(0).float(), 2e-6), 201, 99))


def _running_sum() -> Task:
    x = _normal("x", 4, 1001)
    return Task((4, 1, 1), (x, Result(x.double().cumsum(1).float(), 2e-6), 1001))


def _greatest() -> Task:
    x = _integers("x", -50, 50, torch.float32, 6, 999)  # many ties: the first counts
    best = x.max(1)
    return Task((6, 1, 1), (x, Result(best.values), Result(best.indices.int()), 999))


def _philox(seed: int, offset: np.ndarray) -> np.ndarray:
    """The first word of Philox 4x32 with ten rounds (Salmon and others, 2011)."""
    low = np.uint64(0xFFFFFFFF)
    c = [offset.astype(np.uint64), *(np.zeros_like(offset, np.uint64) for _ in range(3))]
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        first, second = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        shift = np.uint64(32)
        c = [
            (second >> shift) ^ c[1] ^ np.uint64(k0),
            second & low,
            (first >> shift) ^ c[3] ^ np.uint64(k1),
            first & low,
        ]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c[0].astype(np.uint32)


def _random_bits() -> Task:
    bits = torch.from_numpy(_philox(1234, np.arange(1000)).view(np.int32))
    return Task((4, 1, 1), (Result(bits), 1000, 1234))


def _dropout() -> Task:
    x = _normal("x", 1000)
    bits = _philox(77, np.arange(1000)).view(np.int32).astype(np.int64)
    uniform = torch.from_numpy(np.where(bits < 0, -bits - 1, bits) * 4.6566127342e-10)
    return Task((4, 1, 1), (x, Result(torch.where(uniform < 0.75, x / 0.75, 0.0), 1e-6), 1000, 0.75, 77))


def _total_by_atomics() -> Task:
    x = _normal("x", 2000)
    return Task((8, 1, 1), (x, Result(x.double().sum().float().reshape(1), 1e-4, torch.zeros(1)), 2000))


def _histogram() -> Task:
    x = _integers("x", 0, 64, torch.int32, 2000)
    counts = torch.bincount(x, minlength=64).int()
    return Task((4, 1, 1), (x, Result(counts, start=torch.zeros(64, dtype=torch.int32)), 2000))


def _sorted_rows() -> Task:
    x = _normal("x", 3, 128)
    return Task((3, 1, 1), (x, Result(x.sort(1).values)))


def _transposed() -> Task:
    x = _normal("x", 70, 45).half()
    return Task((3, 2, 1), (x, Result(x.t().contiguous()), 70, 45))


def _product(m: int, n: int, k: int, tile: int, dtype: torch.dtype, tolerance: float) -> Task:
    a, b = _normal("a", m, k).to(dtype), _normal("b", k, n).to(dtype)
    expected = (a.double() @ b.double()).to(dtype)
    return Task((-(-m // tile), -(-n // tile), 1), (a, b, Result(expected, tolerance), m, n, k))


def _product_i8() -> Task:
    a, b = _integers("a", -128, 128, torch.int8, 100, 160), _integers("b", -128, 128, torch.int8, 160, 80)
    expected = (a.double() @ b.double()).int()
    return Task((2, 2, 1), (a, b, Result(expected), 100, 80, 160))


def _grouped() -> Task:
    sizes, n, k = (40, 0, 33, 64, 7), 80, 96
    offsets = torch.tensor([0, *np.cumsum(sizes)], dtype=torch.int32)
    a, b = _normal("a", sum(sizes), k).half(), _normal("b", len(sizes), k, n).half()
    parts = [a[offsets[i] : offsets[i + 1]].double() @ b[i].double() for i in range(len(sizes))]
    return Task((3, 1, 1), (a, b, Result(torch.cat(parts).half(), 1e-3), offsets, len(sizes), n, k))


def _attention() -> Task:
    heads, length, depth = 2, 150, 64
    q, k, v = (_normal(name, heads, length, depth).half() for name in "qkv")
    expected = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
    return Task((3, heads, 1), (q, k, v, Result(expected.half(), 2e-3), length, depth**-0.5))


TASKS: dict[str, Callable[[], Task]] = {
    "vector_add": _vector_add,
    "softmax": _softmax,
    "layernorm": _layernorm,
    "row_sum": _row_sum,
    "column_sum": _column_sum,
    "running_sum": _running_sum,
    "greatest": _greatest,
    "dropout": _dropout,
    "random_bits": _random_bits,
    "total_by_atomics": _total_by_atomics,
    "histogram": _histogram,
    "sorted_rows": _sorted_rows,
    "transposed": _transposed,
    "matmul_f16": lambda: _product(100, 77, 50, 64, torch.float16, 1e-3),
    "matmul_f16_async": lambda: _product(100, 80, 208, 64, torch.float16, 1e-3),
    "matmul_f16_8_warps": lambda: _product(200, 272, 336, 128, torch.float16, 1e-3),
    "matmul_bf16": lambda: _product(100, 80, 208, 64, torch.bfloat16, 8e-3),
    "matmul_f32": lambda: _product(50, 40, 70, 32, torch.float32, 2e-6),
    "matmul_tf32": lambda: _product(100, 80, 208, 64, torch.float32, 2e-3),
    "matmul_i8": _product_i8,
    "grouped_matmul": _grouped,
    "attention": _attention,
}


# -- the report --


def print_rows(rows: Sequence[Row]) -> None:
    print(f"{'program':26} {'from':14} {'right':5} {'ready ms':>9} {'run ms':>9} {'thread instr':>13}  findings")
    for row in rows:
        print(
            f"{row.name:26} {row.origin:14} {'yes' if row.right else 'NO':5} {row.ready_ms:9.1f} {row.run_ms:9.1f} "
            f"{row.thread_instructions:13,}  {len(row.findings) or 'none'}"
        )
        if row.problem:
            print(f"    {row.problem}")
        for finding in row.findings[:4]:
            print(f"    {finding}")
    right, clean = sum(row.right for row in rows), sum(row.right and not row.findings for row in rows)
    print(f"\n{right} of {len(rows)} programs give the right result, {clean} of them without a finding")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--triton-python", help="a Python with triton; without it CUTLASS's programs alone are run")
    parser.add_argument("--cc", type=int, default=80, help="the compute capability Triton compiles for")
    parser.add_argument(
        "--tutorials", type=Path, default=tutorial_folder(), help="examples/cute/tutorial of a checkout of CUTLASS"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="programs to run")
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    options = parser.parse_args()

    def wanted(name: str) -> bool:
        return not options.only or name in options.only

    rows: list[Row] = []
    if options.triton_python:
        made = triton_programs(options.triton_python, options.cc, options.only or ())
        rows += [p if isinstance(p, Row) else run(p) for p in made]
    rows += [p if isinstance(p, Row) else run(p) for p in cutlass_programs(wanted, options.tutorials)]
    print_rows(rows)
    if options.out:
        record = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "tilewright": __version__,
            "machine": platform.machine(),
            "rows": [vars(row) for row in rows],
        }
        options.out.write_text(json.dumps(record, indent=2) + "\n")
    sys.exit(0 if rows and all(row.right for row in rows) else 1)


if __name__ == "__main__":
    main()
