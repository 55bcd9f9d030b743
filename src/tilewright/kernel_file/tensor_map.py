"""The rules of a `map`: a TMA descriptor over a tensor, outermost dimension first as the plan writes it.

A view is accepted where every element it reaches is one of the tensor's own. The driver's encoding is the device's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.kernel_file import words
from tilewright.kernel_file.expression_values import OperationFault, Tensor, show_value
from tilewright.kernel_file.problems import Code
from tilewright.records import DType, TensorMap, TensorSpec, contiguous_stride

MAX_RANK = 5
MAX_BOX = 256
MAX_STEP = 8
MAX_SIZE = 2**32
MAX_STRIDE_BYTES = 2**40
ALIGNMENT = 16
# Out-of-bounds NaN exists where the hardware knows the element as a float; f8 travels as bytes.
NAN_DTYPES = (DType.F64, DType.F32, DType.F16, DType.BF16)


class MapFault(OperationFault):
    """A rule of maps that does not hold, and the option it lies with ("" for the tensor)."""

    def __init__(self, option: str, found: str, remedy: str) -> None:
        self.option = option
        super().__init__(found, remedy, Code.MAP)


def tensor_map(name: str, tensor: Tensor, options: Mapping[str, Any]) -> TensorMap:
    """The descriptor that `map name = tiled(tensor, options...)` means; raises `MapFault`."""
    spec = tensor.spec
    shape, stride = _view(spec, options)
    box = options["box"]
    step = options.get("step", (1,) * len(shape))
    _check_ranks(shape, stride, box, step)
    stride = _without_idle_strides(spec.dtype.itemsize, shape, stride)
    _check_view(spec, shape, stride)
    _check_box(spec.dtype, box, step)
    return TensorMap(
        name=name,
        tensor=tensor.name,
        dtype=spec.dtype,
        shape=shape[::-1],
        stride_bytes=tuple(s * spec.dtype.itemsize for s in stride[:-1])[::-1],
        box=box[::-1],
        step=step[::-1],
        swizzle=_swizzle(spec.dtype, box, options),
        fill_nan=_fill(spec.dtype, options),
        l2_bytes=_one_of(options, "l2", 128),
    )


def _view(spec: TensorSpec, options: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    shape = options.get("shape", spec.shape)
    return shape, options.get("stride", contiguous_stride(shape) if "shape" in options else spec.stride)


def _check_ranks(shape: tuple[int, ...], stride: tuple[int, ...], box: tuple[int, ...], step: tuple[int, ...]) -> None:
    rank = len(shape)
    if not 1 <= rank <= MAX_RANK:
        raise MapFault("shape", f"{rank} dimensions", f"a map has 1 to {MAX_RANK}; give `shape` to join some")
    for key, values in (("stride", stride), ("box", box), ("step", step)):
        if len(values) != rank:
            found = f"{key} {show_value(values)} has {len(values)} numbers, the shape {show_value(shape)} has {rank}"
            raise MapFault(key, found, f"give {rank}; {key} is outermost first")


def _without_idle_strides(itemsize: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...]:
    """A dimension of size 1 is never stepped along, so its stride may be anything; the driver wants a regular one."""
    result = list(stride)
    for i in range(len(shape) - 1, -1, -1):
        if shape[i] != 1:
            continue
        if i == len(shape) - 1:
            result[i] = 1
        elif not _is_regular(result[i] * itemsize):
            row_bytes = max(shape[i + 1] * result[i + 1] * itemsize, 1)
            result[i] = -(-row_bytes // ALIGNMENT) * ALIGNMENT // itemsize
    return tuple(result)


def _is_regular(stride_bytes: int) -> bool:
    return 0 <= stride_bytes < MAX_STRIDE_BYTES and stride_bytes % ALIGNMENT == 0


def _check_view(spec: TensorSpec, shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    itemsize = spec.dtype.itemsize
    if not all(1 <= size <= MAX_SIZE for size in shape):
        found = f"shape {show_value(shape)}"
        raise MapFault("shape", found, "sizes are 1 to 2^32; skip the launch with `when`, or add a `need`")
    if stride[-1] != 1:
        raise MapFault("stride", f"the innermost stride is {stride[-1]}", "it must be 1; the order is outermost first")
    for step in stride[:-1]:
        if not _is_regular(step * itemsize):
            found = f"a stride of {step} elements is {step * itemsize} bytes"
            raise MapFault("stride", found, f"strides are multiples of {ALIGNMENT} bytes below 2^40; add a `need`")
    if not _stays_inside(spec, shape, stride):
        found = f"shape {show_value(shape)} with stride {show_value(stride)} leaves the tensor {spec}"
        found += "" if spec.is_contiguous else f" with stride {show_value(spec.stride)}"
        raise MapFault("shape", found, "every element of the view must be one of the tensor's")


def _stays_inside(spec: TensorSpec, shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether each dimension of the view steps along one evenly spaced run of the tensor's elements, within its end."""
    if 0 in spec.shape:
        return False
    runs = _runs(spec)
    used = [0] * len(runs)
    for size, step in zip(shape, stride, strict=True):
        if size == 1 or step == 0:
            continue
        fitting = [i for i, (_, run_step) in enumerate(runs) if run_step <= step and step % run_step == 0]
        if not fitting:
            return False
        widest = max(fitting, key=lambda i: runs[i][1])
        used[widest] += (size - 1) * (step // runs[widest][1])
    return all(reach < size for reach, (size, _) in zip(used, runs, strict=True))


def _runs(spec: TensorSpec) -> list[tuple[int, int]]:
    """The tensor's dimensions as (size, stride), joined where one continues the other."""
    runs: list[tuple[int, int]] = []
    dimensions = [(n, s) for n, s in zip(spec.shape, spec.stride, strict=True) if n > 1 and s > 0]
    for size, step in sorted(dimensions, key=lambda dimension: dimension[1]):
        if runs and runs[-1][0] * runs[-1][1] == step:
            runs[-1] = (runs[-1][0] * size, runs[-1][1])
        else:
            runs.append((size, step))
    return runs


def _check_box(dtype: DType, box: tuple[int, ...], step: tuple[int, ...]) -> None:
    if not all(1 <= size <= MAX_BOX for size in box):
        raise MapFault("box", f"box {show_value(box)}", f"each size is 1 to {MAX_BOX}; box is outermost first")
    inner_bytes = box[-1] * dtype.itemsize
    if inner_bytes % ALIGNMENT:
        found = f"the inner box is {box[-1]} {dtype}, {inner_bytes} bytes"
        raise MapFault("box", found, f"it must be a multiple of {ALIGNMENT} bytes; box is outermost first")
    if step[-1] != 1:
        remedy = "the innermost is 1: the hardware steps along the others only"
        raise MapFault("step", f"step {show_value(step)}", remedy)
    if not all(1 <= size <= MAX_STEP for size in step):
        raise MapFault("step", f"step {show_value(step)}", f"each is 1 to {MAX_STEP}; step is outermost first")


def _swizzle(dtype: DType, box: tuple[int, ...], options: Mapping[str, Any]) -> int:
    swizzle = _one_of(options, "swizzle", 0)
    inner_bytes = box[-1] * dtype.itemsize
    if swizzle and inner_bytes > swizzle:
        found = f"the inner box is {inner_bytes} bytes, more than swizzle {swizzle}"
        raise MapFault("swizzle", found, f"use at most {swizzle // dtype.itemsize} elements; box is outermost first")
    return swizzle


def _fill(dtype: DType, options: Mapping[str, Any]) -> bool:
    fill = _one_of(options, "fill", 0)
    if fill and dtype not in NAN_DTYPES:
        raise MapFault("fill", f"fill 1 is NaN, and the tensor is {dtype}", "leave `fill` out, or use a float tensor")
    return fill == 1


def _one_of(options: Mapping[str, Any], key: str, default: int) -> int:
    value: int = options.get(key, default)
    allowed = words.MAP_CHOICES[key]
    if value in allowed:
        return value
    raise MapFault(key, f"{key} {show_value(value)}", f"it is one of {', '.join(map(str, allowed))}")
