"""A launch plan at concrete shapes: buffers to allocate, descriptors to encode, steps to run in order.

`kernel_file.evaluate` makes these records, `kernel_file.bind` packs the arguments of the launches against the
compiled parameter lists, and every device runs the result. Nothing here holds a pointer or knows a device.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tilewright.records.dtypes import DType
from tilewright.records.tensors import TensorSpec

Dim3 = tuple[int, int, int]
ConstantValue = int | float | bool | DType


class BufferRole(str, Enum):
    OUT = "out"
    SCRATCH = "scratch"


class Clearing(str, Enum):
    """The contents of a buffer when the first step starts."""

    UNDEFINED = "undefined"
    ZEROED = "zeroed"  # cleared by the runner, inside the timed plan
    COUNTER = "counter"  # zero at the start because every call must leave it zero


@dataclass(frozen=True)
class Buffer:
    """Memory that the runner allocates for one call."""

    name: str
    role: BufferRole
    spec: TensorSpec
    clearing: Clearing = Clearing.UNDEFINED


@dataclass(frozen=True)
class TensorMap:
    """A TMA descriptor of a tensor; all lists are innermost first, as the driver requires."""

    name: str
    tensor: str
    dtype: DType
    shape: tuple[int, ...]
    stride_bytes: tuple[int, ...]  # of the dimensions after the innermost
    box: tuple[int, ...]
    step: tuple[int, ...]
    swizzle: int  # 0, 32, 64 or 128
    fill_nan: bool
    l2_bytes: int  # 0, 64, 128 or 256

    @property
    def data_type(self) -> int:
        """CUtensorMapDataType. 8-bit floats are copied as bytes."""
        return 0 if self.dtype.itemsize == 1 else _MAP_DATA_TYPES[self.dtype]

    @property
    def swizzle_mode(self) -> int:
        """CUtensorMapSwizzle."""
        return (0, 32, 64, 128).index(self.swizzle)


_MAP_DATA_TYPES = {DType.I16: 1, DType.I32: 3, DType.I64: 5, DType.F16: 6, DType.F32: 7, DType.F64: 8, DType.BF16: 9}


# -- arguments of a launch --


@dataclass(frozen=True)
class TensorArgument:
    name: str


@dataclass(frozen=True)
class AbsentArgument:
    """A null pointer: an optional tensor that was not given, or `none`."""

    name: str


@dataclass(frozen=True)
class MapArgument:
    name: str


@dataclass(frozen=True)
class ScalarArgument:
    """A number known at evaluation. `divided`: it is the result of an integer division."""

    value: int | float | bool
    divided: bool = False


class ScalarType(str, Enum):
    INT = "int"
    FLOAT = "float"
    BOOL = "bool"


@dataclass(frozen=True)
class LateArgument:
    """A number computed at every call, from scalars that decide nothing else in the plan."""

    index: int  # into the evaluation's late expressions
    type: ScalarType
    divided: bool = False


Argument = TensorArgument | AbsentArgument | MapArgument | ScalarArgument | LateArgument


@dataclass(frozen=True)
class Launch:
    """One kernel launch. `kernel` is a C++ name expression such as `gemm<128, __half>`."""

    kernel: str
    grid: Dim3
    block: Dim3
    dynamic_smem_bytes: int
    arguments: tuple[Argument, ...]
    cluster: Dim3 | None
    cooperative: bool
    pdl: bool
    line: int
    column: int = 1
    places: tuple[tuple[int, int], ...] = ()  # (line, column) of each argument, for messages


LibraryValue = (
    int | float | bool | None | DType | TensorArgument | tuple[int, ...] | tuple[float, ...] | tuple[bool, ...]
)


@dataclass(frozen=True)
class LibraryCall:
    """A `library` step: a functional ATen operator whose result becomes the buffer `target`."""

    target: str
    function: str  # "aten.mm"
    arguments: tuple[LibraryValue, ...]
    line: int


Step = Launch | LibraryCall


# -- launches packed for the driver --


@dataclass(frozen=True)
class PointerField:
    offset: int
    tensor: str


@dataclass(frozen=True)
class MapField:
    offset: int
    map: str


@dataclass(frozen=True)
class LateField:
    """The place of a late argument; `format` is a `struct` code such as `<f`, `<q`, `<i`, `<?`."""

    offset: int
    format: str
    index: int
    place: tuple[int, int] = (0, 0)  # (line, column) of the argument in the kernel file, for messages


@dataclass(frozen=True)
class PackedLaunch:
    """A launch with its argument block, complete except for addresses, descriptors and late numbers."""

    symbol: str
    kernel: str
    grid: Dim3
    block: Dim3
    dynamic_smem_bytes: int
    cluster: Dim3 | None
    cooperative: bool
    pdl: bool
    parameters: tuple[tuple[int, int], ...]  # (offset, size) of each kernel parameter in the block
    block_template: bytes  # the whole argument block, zeros where fields go
    pointers: tuple[PointerField, ...]
    maps: tuple[MapField, ...]
    late: tuple[LateField, ...]
    line: int


@dataclass(frozen=True)
class BoundPlan:
    """Everything a device needs besides the cubin and the tensors."""

    buffers: tuple[Buffer, ...]
    maps: tuple[TensorMap, ...]
    steps: tuple[PackedLaunch | LibraryCall, ...]

    @property
    def launches(self) -> list[PackedLaunch]:
        return [step for step in self.steps if isinstance(step, PackedLaunch)]

    def tensors_of(self, step: PackedLaunch | LibraryCall) -> set[str]:
        """The tensors passed to a step, by address or through maps."""
        if isinstance(step, LibraryCall):
            return {one.name for one in step.arguments if isinstance(one, TensorArgument)} | {step.target}
        maps = {one.name: one.tensor for one in self.maps}
        return {field.tensor for field in step.pointers} | {maps[field.map] for field in step.maps}

    def last_user(self, name: str) -> PackedLaunch | None:
        """The last launch that the tensor is passed to."""
        return next((launch for launch in reversed(self.launches) if name in self.tensors_of(launch)), None)
