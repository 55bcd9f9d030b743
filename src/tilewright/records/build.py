"""Requests and results of builds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tilewright.records.steps import ConstantValue, Dim3

# The name of the kernel file for the compiler, and so in line tables of PTX and cubins.
KERNEL_FILE_NAME = "/tilewright/kernel.cu"


@dataclass(frozen=True)
class BuildRequest:
    """One translation unit: a kernel file's text, constants, the kernels it launches, and the architecture."""

    source: str
    constants: tuple[tuple[str, ConstantValue], ...]
    kernels: tuple[str, ...]  # C++ name expressions
    arch: str  # "sm_90a"
    name: str = "kernel.cu"  # in diagnostics


class Severity(str, Enum):
    ERROR = "error"
    WARNING = "warning"
    REMARK = "remark"


@dataclass(frozen=True)
class Diagnostic:
    """A compiler message at a line of the kernel file or of a header."""

    severity: Severity
    file: str
    line: int
    column: int  # 1-based; 0 where the compiler gave none
    message: str
    source_line: str
    notes: tuple[str, ...] = ()  # instantiation backtrace and the like

    def __str__(self) -> str:
        place = "".join(f":{number}" for number in (self.line, self.column) if number)
        return f"{self.file}{place}: {self.severity.value}: {self.message}"


class ParameterKind(str, Enum):
    POINTER = "pointer"
    CONST_POINTER = "const pointer"
    BOOL = "bool"
    SIGNED = "signed integer"
    UNSIGNED = "unsigned integer"
    FLOAT = "float"
    TENSOR_MAP = "CUtensorMap"
    OTHER = "struct"


class PointeeKind(str, Enum):
    """Kinds of equal size that must not be confused."""

    F16 = "f16"
    BF16 = "bf16"
    OTHER = "other"


@dataclass(frozen=True)
class KernelParameter:
    kind: ParameterKind
    size: int
    align: int
    pointee_size: int = 0
    pointee_align: int = 0
    pointee: PointeeKind = PointeeKind.OTHER
    only_read: bool = False  # the compiled code stores nothing through it, though it is not const


@dataclass(frozen=True)
class Resources:
    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    static_smem_bytes: int
    constant_bytes: int
    barriers: int

    @property
    def spill_bytes(self) -> int:
        return self.spill_store_bytes + self.spill_load_bytes


@dataclass(frozen=True)
class CompiledKernel:
    expression: str  # as the plan names it
    symbol: str  # as the cubin names it
    parameters: tuple[KernelParameter, ...]
    resources: Resources
    max_threads: int | None  # from __launch_bounds__, else None
    cluster: Dim3 | None  # from __cluster_dims__, else None


@dataclass(frozen=True)
class Build:
    """A successful build. `key` is the content address: source, constants, kernels, flags, compiler."""

    key: str
    arch: str
    compiler: str
    cubin: bytes
    ptx: str
    kernels: tuple[CompiledKernel, ...]
    warnings: tuple[Diagnostic, ...]
    seconds: float

    def kernel(self, expression: str) -> CompiledKernel:
        for kernel in self.kernels:
            if kernel.expression == expression:
                return kernel
        raise KeyError(expression)


class FailureReason(str, Enum):
    DIAGNOSTICS = "the compiler rejected the source"
    TIME = "the compilation ran past its time limit"
    MEMORY = "the compilation ran past its memory limit"
    CRASH = "the compiler died"
    EXTERNAL = "the code calls a function that nothing here defines"
    DEVICE_STATE = "a launched kernel writes a module global"
    DEVICE_CALL = "a launched kernel reads a clock or tells calls apart"


@dataclass(frozen=True)
class BuildFailure:
    """A failed build, with the reason and its place."""

    key: str
    arch: str
    reason: FailureReason
    diagnostics: tuple[Diagnostic, ...]
    log: str
    seconds: float

    def __str__(self) -> str:
        first = next((d for d in self.diagnostics if d.severity is Severity.ERROR), None)
        return f"{self.reason.value}" + (f": {first}" if first else "")
