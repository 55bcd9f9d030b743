"""Describes a task for a prompt: the reference, the first lines of the file, inputs, and the goal."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright import records
from tilewright.kernel_file import print_op
from tilewright.kernel_file.op_line import needs_of_task, op_of_task, size_expression
from tilewright.prompts.rendering import render
from tilewright.records import KIB, MIB, Goal, Task

_TRUE_F32 = "f32 sums of 16-bit inputs, true f32 for f32 (no TF32, no 16-bit)"
_PRECISION = {
    records.Precision.DTYPE: f"as the dtypes promise: {_TRUE_F32}.",
    records.Precision.DEFAULT_F32: f"as PyTorch's own, which computes these convolutions in f32 too: {_TRUE_F32}.",
    records.Precision.STRICT: f"as the dtypes promise, convolutions too: {_TRUE_F32}.",
    records.Precision.TF32: "products of f32 values may be rounded to TF32; sums are f32.",
    records.Precision.HALF: "f32 work may be done with 16-bit operands; sums are f32.",
}
_TF32_CONVOLUTIONS = (
    "as PyTorch's own by default: f32 convolutions may round their operands to TF32, with f32 sums; elsewhere true f32 "
    "for f32 (no TF32, no 16-bit), and f32 sums of 16-bit inputs."
)
PRODUCT_KINDS = (records.Kind.MATMUL, records.Kind.CONVOLUTION, records.Kind.ATTENTION)
_GOAL = {
    Goal.THROUGHPUT: "the least time per call at these sizes.",
    Goal.LATENCY: "the least latency of a single call: few launches, no second pass, short chains of dependent steps.",
}


def task_text(task: Task) -> str:
    """The section of a prompt that states the task. It is the same for all questions of a run."""
    varying = [f"`{one.name}`{_limits(one, task)}" for one in task.free if one.varies]
    return render(
        "task",
        words=task.words,
        function=task.function,
        reference=task.reference.strip(),
        op_line=op_line(task),
        out_lines=(*out_lines(task), *(f"//! need    {need}" for need in needs_of_task(task))),
        inputs=[_input(one, task) for one in task.inputs],
        outputs=[
            f"`{one.name}` (result): {_typed(one.dtype.value, one.shape, task)}, contiguous" for one in task.outputs
        ],
        dimensions=", ".join(f"{one.name} = {one.size}" for one in task.dimensions) or "none",
        following=", ".join(f"`{one.name} = {one.formula}`" for one in task.dimensions if one.formula is not None),
        varying=", ".join(varying),
        precision=_precision(task),
        library=task.allow_library,
        bounds=memory_bounds(task),
        products=task.kind in PRODUCT_KINDS,
        us=_time,
        amount=_amount,
        goal=_GOAL[task.goal],
    )


def _precision(task: Task) -> str:
    """The precision of the task; baselines use the same."""
    if task.precision is records.Precision.DTYPE and "conv" in task.reference.lower():
        return _TF32_CONVOLUTIONS
    return _PRECISION[task.precision]


def op_line(task: Task) -> str:
    """The `op` line that files of the task must have."""
    return f"//! {print_op(op_of_task(task))}"


def out_lines(task: Task) -> tuple[str, ...]:
    """An `out` line for each output, with sizes taken from inputs."""
    lines = []
    for one in task.outputs:
        like = _like(one, task)
        dtype = f"{like.name}.dtype" if like is not None and like.dtype is one.dtype else one.dtype.value
        shape = f"{like.name}.shape" if like is not None else ", ".join(_size(size, task) for size in one.shape)
        lines.append(f"//! out     {one.name}: {dtype}[{shape}]")
    return tuple(lines)


def gpu_text(profile: records.GpuProfile) -> str:
    """The GPU's properties in one line."""
    clock = f" at {profile.clock_ghz:g} GHz" if profile.clock_ghz else ""
    bandwidth = f", {profile.bandwidth_gbs:,.0f} GB/s of device memory" if profile.bandwidth_gbs else ""
    tensor = f", {profile.half_tflops:,.0f} TFLOP/s of 16-bit tensor-core work" if profile.half_tflops else ""
    return (
        f"{profile.name} ({profile.arch}): {profile.sms} SMs{clock}, {profile.smem_block // KIB} KiB of shared memory "
        f"per block ({profile.smem_sm // KIB} per SM), {profile.threads_sm} threads per SM, "
        f"L2 {profile.l2 // MIB} MiB{bandwidth}{tensor}."
    )


# -- lower bounds of the time --


@dataclass(frozen=True)
class MemoryBounds:
    """Lower bounds for a kernel that reads every input and writes every output once."""

    moved_bytes: int
    memory_us: float  # at the vendor's bandwidth
    written_back_bytes: int  # from a cold L2
    reached_us: float  # best time in practice, with launch and write-back

    @property
    def floor_us(self) -> float:
        return self.memory_us + records.LAUNCH_US


def memory_bounds(task: Task) -> MemoryBounds | None:
    """None if the GPU's bandwidth is unknown or nothing is moved."""
    gpu, moved = task.profile, task.moved_bytes
    if not gpu.bandwidth_gbs or not moved:
        return None
    usable = int(records.USABLE_L2 * gpu.l2)
    specs = task.specs()
    written = sum(spec.storage_bytes for spec in task.output_specs().values())
    written += sum(specs[one.name].storage_bytes for one in task.tensors if one.in_place)
    back = max(0, min(usable, moved) - min(usable, written))
    rate = gpu.bandwidth_gbs * 1e3  # bytes per microsecond
    reached_us = records.FIRST_LAUNCH_US + records.memory_us(moved - written, written, back, gpu.bandwidth_gbs)
    return MemoryBounds(moved, moved / rate, back, reached_us)


# -- inputs and outputs --


def _input(one: records.TensorInput | records.NumberInput, task: Task) -> str:
    if isinstance(one, records.NumberInput):
        others = "other values must work too"
        if one.bounds is not None:
            others = f"other values must work too where {' and '.join(one.bounds.conditions(one.name))}"
        return f"`{one.name}`: {one.type.value}, {one.value!r} here; {others}"
    notes = [f"values: {_values(one.values)}"]
    if one.memory_order:
        order = ", ".join(one.dimensions[index] for index in one.memory_order)
        notes.append(
            f"not row-major: in memory {order} from outermost to innermost, so `accept {one.name}: strided` is needed"
        )
    if one.in_place:
        notes.append("changed in place")
    if one.optional:
        notes.append("may be absent")
    if one.parameter:
        notes.append("a weight, the same over many calls")
    return f"`{one.name}`: {_typed(one.dtype.value, one.dimensions, task)}; {'; '.join(notes)}"


def _typed(dtype: str, shape: tuple[str | int, ...], task: Task) -> str:
    sizes = ", ".join(str(size) for size in shape)
    numbers = "x".join(str(size if isinstance(size, int) else task.sizes[size]) for size in shape)
    return f"{dtype}[{sizes}]" + (f" = {numbers}" if any(isinstance(size, str) for size in shape) else "")


# Kernels are verified with other values too.
_PARTS = {
    records.Part.WHOLE: "",
    records.Part.UPPER: " on and above the diagonal, 0 below (in the timed call; any numbers must give right results)",
    records.Part.LOWER: " on and below the diagonal, 0 above (in the timed call; any numbers must give right results)",
}


def _values(values: records.Values) -> str:
    match values:
        case records.NormalValues(mean=mean, deviation=deviation):
            return f"normal({mean:g}, {deviation:g}){_PARTS[values.part]}"
        case records.UniformValues(low=low, high=high):
            return f"uniform({low:g}, {high:g}){_PARTS[values.part]}"
        case records.IntegerValues(low=low, high=high):
            return f"integers {low} to {high - 1}"
        case records.IndexValues(dimension=dimension):
            return f"indices 0 to {dimension} - 1"


def _limits(one: records.Dimension, task: Task) -> str:
    limits = [f"multiples of {one.multiple_of}"] if one.multiple_of > 1 else []
    limits += [least] if (least := task.least_words(one)) else []
    limits += [f"at most {one.at_most}"] if one.at_most is not None else []
    return f" ({', '.join(limits)})" if limits else ""


# -- out lines --


def _like(one: records.TaskOutput, task: Task) -> records.TensorInput | None:
    """The first input with the output's shape, preferably of its dtype."""
    whole = [
        other for other in task.tensors if not other.optional and other.dimensions and other.dimensions == one.shape
    ]
    return next((other for other in whole if other.dtype is one.dtype), whole[0] if whole else None)


def _size(size: str | int, task: Task) -> str:
    if isinstance(size, int):
        return str(size)
    return size_expression(size, task) or str(task.sizes[size])


def _amount(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 1e5 else f"{count:,} bytes"


def _time(microseconds: float) -> str:
    return f"{microseconds:.3g} us" if microseconds < 100 else f"{microseconds:,.0f} us"
