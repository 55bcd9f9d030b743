"""Generated host code, compiled and asked what it would do; and the same asked of the Python evaluator."""

from __future__ import annotations

import ctypes
import json
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tilewright.exports
from tilewright.exports.cpp_tables import host_source
from tilewright.exports.variants import Variants, constant_key
from tilewright.kernel_file import (
    Arguments,
    Evaluation,
    KernelFile,
    KernelFileError,
    Refused,
    bind,
    settle,
    try_evaluate,
)
from tilewright.records import BufferRole, Clearing, DType, GpuProfile, ScalarType, TensorMap, TensorSpec

HOST = Path(tilewright.exports.__file__).parent / "host"
_DTYPES = list(DType)


class Probe:
    """The host code of an export, compiled for this machine."""

    def __init__(self, files: Sequence[KernelFile], variants: Variants, folder: Path) -> None:
        self.files = files
        generated = folder / "generated.inc"
        generated.write_text(host_source(files, variants))
        library = folder / "probe.so"
        command = [
            "g++",
            "-std=c++17",
            "-O0",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-unused-function",
            "-Wno-unused-const-variable",
        ]
        command += ["-fPIC", "-shared", f"-I{HOST}", f'-DGENERATED="{generated}"']
        done = subprocess.run(
            [*command, str(Path(__file__).parent / "probe.cpp"), "-o", str(library)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[:4000]
        self._probe = ctypes.CDLL(str(library)).probe
        self._probe.restype = ctypes.c_char_p

    def __call__(self, arguments: Arguments, gpu: GpuProfile) -> dict[str, Any]:
        numbers = _packed(self.files[0], arguments)
        facts = (gpu.cc, gpu.sms, gpu.smem_block, gpu.smem_sm, gpu.l2, gpu.max_cluster)
        answer = self._probe((ctypes.c_int64 * len(numbers))(*numbers), (ctypes.c_int64 * 6)(*facts))
        return json.loads(answer.decode())


def _packed(file: KernelFile, arguments: Arguments) -> list[int]:
    numbers: list[int] = []
    regular = file.signature.arguments(arguments)
    for parameter in file.plan.op.parameters:
        value = regular[parameter.name]
        numbers.append(int(value is not None))
        if isinstance(value, TensorSpec):
            numbers += [_DTYPES.index(value.dtype), value.alignment, value.ndim, *value.shape, *value.stride]
        elif isinstance(value, tuple):
            numbers += [len(value), *(_bits(parameter.scalar, one) for one in value)]
        elif value is not None:
            numbers.append(_bits(parameter.scalar, value))
    return numbers


def _bits(scalar: ScalarType | None, value: Any) -> int:
    return struct.unpack("<q", struct.pack("<d", value))[0] if scalar is ScalarType.FLOAT else int(value)


def expected(files: Sequence[KernelFile], variants: Variants, arguments: Arguments, gpu: GpuProfile) -> dict[str, Any]:
    """What the Python evaluator makes of the call, in the form of `probe.cpp`."""
    lines = []
    for number, file in enumerate(files):
        furthest = 0
        for choice in variants.choices[number]:
            try:
                outcome = try_evaluate(file, arguments, gpu, choice)
            except KernelFileError as error:
                return {"error": error.problems[0].line}
            if isinstance(outcome, Refused):
                furthest = max(furthest, outcome.problem.line)
                continue
            answer = _described(number, outcome, variants, file.signature.arguments(arguments))
            if answer is not None:
                return answer
            furthest = 10**6  # of the launch, whichever it is: no build was exported
        lines.append(furthest)
    return {"refused": lines}


def _described(number: int, evaluation: Evaluation, variants: Variants, arguments: Any) -> dict[str, Any] | None:
    module = next((m for m in variants.modules if m.file == number and m.constants == evaluation.constants), None)
    wanted = evaluation.build_request()
    if wanted is not None and (module is None or not set(wanted.kernels) <= set(module.request.kernels)):
        return None
    slots = {p.name: i for i, p in enumerate(p for p in evaluation.file.plan.op.parameters if p.scalar is None)}
    slots |= {buffer.name: len(slots) + i for i, buffer in enumerate(evaluation.buffers)}
    try:
        plan = bind(evaluation, module.builds[0] if module else None, evaluation.gpu)
        plan = settle(plan, evaluation.late_values(arguments))
    except KernelFileError as error:
        return {"error": error.problems[0].line}
    return {
        "file": number,
        "constants": [constant_key(value) for _, value in evaluation.constants],
        "buffers": [
            [b.name, int(b.role is BufferRole.OUT), int(b.clearing is not Clearing.UNDEFINED), *_layout(b.spec)]
            for b in evaluation.buffers
        ],
        "maps": [
            [m.name, slots[m.tensor], *map(list, (m.shape, m.stride_bytes, m.box, m.step)), *_options(m)]
            for m in evaluation.maps
        ],
        "launches": [
            {
                "kernel": one.kernel,
                "grid": list(one.grid),
                "block": list(one.block),
                "smem": one.dynamic_smem_bytes,
                "cluster": list(one.cluster or (0, 0, 0)),
                "cooperative": int(one.cooperative),
                "pdl": int(one.pdl),
                "line": one.line,
                "arguments": _block(one, slots),
            }
            for one in plan.launches
        ],
    }


def _layout(spec: TensorSpec) -> tuple[Any, ...]:
    return spec.dtype.value, list(spec.shape), list(spec.stride), spec.storage_bytes


def _options(one: TensorMap) -> tuple[int, ...]:
    return one.swizzle, int(one.fill_nan), one.l2_bytes


def _block(launch: Any, slots: dict[str, int]) -> str:
    block = bytearray(launch.block_template)
    for field in launch.pointers:
        struct.pack_into("<Q", block, field.offset, 0x1000 + slots[field.tensor])
    return block.hex()


def agree(answer: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether both say the same; of refusals and errors, that they are, and at which line."""
    if "refused" in wanted:
        if "refused" not in answer:
            return False
        lines = [line for line, _ in answer["refused"]]
        return all(one == other or other == 10**6 for one, other in zip(lines, wanted["refused"], strict=True))
    if "error" in wanted:
        return "error" in answer
    return answer == wanted
