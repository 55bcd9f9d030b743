"""Compiles CUDA C++ to PTX and runs it in the emulator on numpy arrays: what the core's tests share."""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from cuda.bindings import nvrtc

from tilewright.ptx.global_memory import GlobalMemory
from tilewright.ptx.launching import LaunchOptions, LaunchRequest, LaunchResult
from tilewright.ptx.program import Program, load_program
from tilewright.records import KERNEL_FILE_NAME, Check, FindingKind, FindingRecord
from tilewright.records.steps import Dim3
from tilewright.toolchain import find_toolkit

QUICK = LaunchOptions(workers=1, instruction_budget=200_000_000)


@functools.cache
def ptx_of(source: str, arch: str = "sm_80") -> str:
    """The PTX NVRTC makes of a source, with line numbers; nothing is judged or cached on disk."""
    options = [f"-arch=compute_{arch[3:]}", "-lineinfo", "-std=c++17", "-default-device", "--device-int128"]
    options += [f"-I{folder}" for folder in find_toolkit().include_dirs]
    error, handle = nvrtc.nvrtcCreateProgram(source.encode(), KERNEL_FILE_NAME.encode(), 0, [], [])
    assert error == nvrtc.nvrtcResult.NVRTC_SUCCESS
    (failed,) = nvrtc.nvrtcCompileProgram(handle, len(options), [option.encode() for option in options])
    if failed != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = b" " * nvrtc.nvrtcGetProgramLogSize(handle)[1]
        nvrtc.nvrtcGetProgramLog(handle, log)
        raise AssertionError(log.decode())
    text = b" " * nvrtc.nvrtcGetPTXSize(handle)[1]
    nvrtc.nvrtcGetPTX(handle, text)
    nvrtc.nvrtcDestroyProgram(handle)
    return text.decode().rstrip("\0")


@functools.cache
def program_of(source: str, arch: str = "sm_80") -> Program:
    return load_program(ptx_of(source, arch))


@dataclass(frozen=True)
class Ran:
    result: LaunchResult
    memory: GlobalMemory
    dtypes: Mapping[str, np.dtype[Any]]

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        return self.memory.bytes(name).view(self.dtypes[name])

    @property
    def kinds(self) -> set[FindingKind]:
        return {finding.kind for finding in self.result.findings}

    def only(self, kind: FindingKind) -> FindingRecord:
        assert self.kinds == {kind}, self.result.findings
        return next(finding for finding in self.result.findings if finding.kind is kind)


@dataclass(frozen=True)
class In:
    """An input array: not to be written."""

    array: np.ndarray[Any, Any]


@dataclass(frozen=True)
class Fresh:
    """An output: never written before."""

    array: np.ndarray[Any, Any]


Argument = np.ndarray[Any, Any] | In | Fresh | int | float | np.generic | bytes


def _pack(arguments: Mapping[str, Argument], memory: GlobalMemory) -> tuple[bytes, dict[str, np.dtype[Any]]]:
    packed, dtypes = bytearray(), {}
    for name, argument in arguments.items():
        if isinstance(argument, (In, Fresh, np.ndarray)):
            array = argument.array if isinstance(argument, (In, Fresh)) else argument
            address = memory.add(
                name,
                array.nbytes,
                element_bytes=array.itemsize,
                shape=array.shape,
                writable=not isinstance(argument, In),
                initialised=not isinstance(argument, Fresh),
                data=None if isinstance(argument, Fresh) else array.tobytes(),
            )
            dtypes[name] = array.dtype
            value = struct.pack("<Q", address)
        elif isinstance(argument, bytes):
            value = argument
        elif isinstance(argument, np.generic):
            value = argument.tobytes()
        else:
            value = struct.pack("<f", argument) if isinstance(argument, float) else struct.pack("<i", argument)
        size = min(len(value), 8)
        packed += bytes(-len(packed) % size) + value
    return bytes(packed), dtypes


def run(
    source: str | Program,
    arguments: Mapping[str, Argument],
    *,
    grid: Sequence[int] = (1,),
    block: Sequence[int] = (32,),
    kernel: str = "k",
    smem: int = 0,
    cooperative: bool = False,
    cluster: Dim3 | None = None,
    options: LaunchOptions = QUICK,
    checks: tuple[Check, ...] | None = None,
) -> Ran:
    """One launch. Arrays are addresses, numbers are passed by value: int as 32 bits, float as f32, numpy as is."""
    program = program_of(source) if isinstance(source, str) else source
    memory = GlobalMemory()
    parameters, dtypes = _pack(arguments, memory)
    request = LaunchRequest(
        kernel=kernel,
        grid=(*grid, 1, 1)[:3],  # type: ignore[arg-type]
        block=(*block, 1, 1)[:3],  # type: ignore[arg-type]
        dynamic_smem_bytes=smem,
        parameters=parameters,
        cooperative=cooperative,
        cluster=cluster,
        options=options if checks is None else replace(options, checks=checks),
    )
    return Ran(program.launch(memory, request), memory, dtypes)


def clean(source: str | Program, arguments: Mapping[str, Argument], **settings: Any) -> Ran:
    """A launch that must find nothing."""
    ran = run(source, arguments, **settings)
    assert not ran.result.findings, ran.result.findings
    return ran


def one_instruction(text: str, inputs: Sequence[str], output: str) -> str:
    """A kernel that applies one instruction of inline PTX, `%0` the result and `%1`... the inputs, per thread."""
    letters = {"u16": "h", "s16": "h", "u32": "r", "s32": "r", "u64": "l", "s64": "l", "f32": "f", "f64": "d"}
    types = {"u16": "unsigned short", "s16": "short", "u32": "unsigned", "s32": "int", "u64": "unsigned long long"}
    types |= {"s64": "long long", "f32": "float", "f64": "double"}
    parameters = ", ".join(f"const {types[t]}* a{n}" for n, t in enumerate(inputs))
    operands = ", ".join(f'"{letters[t]}"(a{n}[threadIdx.x])' for n, t in enumerate(inputs))
    return (
        f'extern "C" __global__ void k({parameters}, {types[output]}* d) {{ {types[output]} r; '
        f'asm volatile("{text}" : "={letters[output]}"(r) : {operands}); d[threadIdx.x] = r; }}'
    )
