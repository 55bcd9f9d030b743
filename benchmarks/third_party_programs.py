"""Programs that other people's compilers and libraries made, run in the emulator and compared with PyTorch.

    python benchmarks/third_party_programs.py [--triton-python PATH [--cc 90]] [--only NAME ...] [--out FILE]

So that the emulator's semantics are not only ours: CUTLASS's CuTe tutorials, taken from the nvidia-cutlass wheel, and
Triton kernels, compiled by the Python given (one with triton 3.x installed; no GPU is needed). Neither is part of this
project. Reports how many give the right result, and what the checkers said of them.
"""

from __future__ import annotations

import argparse
import json
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
from recording import write_result
from third_party_tasks import TASKS, Mapped, Result, Task, Value, normal
from tilewright import __version__
from tilewright.devices.inputs import DTYPE_OF_TORCH
from tilewright.ptx.global_memory import GlobalMemory
from tilewright.ptx.launching import LaunchOptions, LaunchRequest, encoded_map
from tilewright.ptx.program import load_program
from tilewright.records import Build, BuildRequest, FindingRecord, TensorMap
from tilewright.toolchain import build

SEEDS = (None, 1, 2)
_MAP_ALIGNMENT = 64  # of a tensor map among the parameters


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
        source = normal("s", n, m)  # column-major: as PyTorch sees it, transposed
        task = Task((-(-m // 128), -(-n // 64), 1), (source, Result(source), m, n))
        return Program(program.name, "CUTLASS", ptx, program.name, 256, 0, task)
    dtype = torch.float16 if program.half else torch.float32
    m, n, k = 256, 128, 192
    a, b = normal("a", m, k).to(dtype), normal("b", n, k).to(dtype)
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
        write_result(options.out, {"tilewright": __version__, "rows": [vars(row) for row in rows]})
    sys.exit(0 if rows and all(row.right for row in rows) else 1)


if __name__ == "__main__":
    main()
