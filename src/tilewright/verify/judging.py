"""In the reference's process: the handlers that judge a kernel's outputs, for a task's case or for any call."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tilewright.devices.emulation.input_content import input_bytes
from tilewright.devices.inputs import allocate, fill
from tilewright.devices.protocol import NotOpened
from tilewright.records import (
    Case,
    Data,
    InputTensor,
    Precision,
    ReturnedTensor,
    SharedTensor,
    Task,
    WrittenPart,
    WrongOutput,
)
from tilewright.reference import ReferenceProblem
from tilewright.reference.convolutions import computed_in_f32
from tilewright.reference.torch_calls import TORCH_DTYPE, call_by_name, call_reference, to_torch
from tilewright.verify.case_work import elements_of, work_of
from tilewright.verify.diagnosis import diagnose
from tilewright.verify.distributions import TASK, case_task, draw_inputs, traits_of
from tilewright.verify.expectation import Call, Tensors, expectations
from tilewright.verify.independence import independent_at, taken
from tilewright.verify.judging_records import (
    LARGE,
    CallJudgement,
    CallRequest,
    Judgement,
    JudgeRequest,
    ResultVerdict,
    WrittenRequest,
)
from tilewright.verify.large import LargeCall, check_shape, judge_large
from tilewright.verify.recheck import Recheck, compare_all
from tilewright.verify.tolerance import MOST_LEEWAY, Comparison, Expected, are_numbers, compare

_WORTH_A_GPU = 1 << 19  # elements
AGAIN_SEED = 101  # of the perturbations of a recheck
_KEPT = 32  # cases whose expectations are cached, each with at most
_KEPT_ELEMENTS = 1 << 20

_Known = tuple[Tensors, list[Expected]]
_known: dict[str, _Known] = {}  # by task and case, since every candidate is judged by the same cases


def judge(
    function: Callable[..., Any], request: JudgeRequest, results: tuple[ReturnedTensor | SharedTensor, ...] = ()
) -> Judgement:
    """Compare every output with the reference, and diagnose what is wrong.

    The outputs are those of the request, or the `results` of the job, where they come with it.
    """
    start = time.monotonic()
    task = case_task(request.task, request.case)
    shared = any(isinstance(one, SharedTensor) for one in results)
    if shared or (elements_of(task, request.case.sizes) >= LARGE and torch.cuda.is_available()):
        return replace(_judge_large(function, task, request, results), seconds=time.monotonic() - start)
    tensors, expected = _expected(function, task, request.case, request.inputs)
    outputs = {one.name: one for one in (*request.outputs, *results) if isinstance(one, ReturnedTensor)}
    made = []
    for name, wanted in zip(_names(task), expected, strict=True):
        made.append(to_torch(outputs[name].spec, outputs[name].content).to(wanted.truth.device))
        check_shape(name, made[-1], wanted)
    call = _caller(function, task, tensors)
    again = Recheck(call, tensors, task.precision, AGAIN_SEED)
    expected, comparisons = compare_all(made, expected, traits_of(task, request.case), again)
    wrong = []
    worst, telling = 0.0, True
    for name, found, wanted, comparison in zip(_names(task), made, expected, comparisons, strict=True):
        worst = max(worst, comparison.ratio)
        telling = telling and is_telling(task, request.case, wanted, comparison)
        if not comparison.right:
            wrong.append(diagnose(name, found, wanted, comparison, tensors))
    elements = sum(one.truth.numel() for one in expected)
    return Judgement(tuple(wrong), worst, telling, time.monotonic() - start, elements)


def call_alone(function: Callable[..., Any], request: JudgeRequest) -> Judgement:
    """Call the reference as the case does. Raises what it raises, and `ReferenceProblem` where it returns other shapes
    than the task says."""
    task = case_task(request.task, request.case)
    tensors = _tensors(request.inputs or _drawn(task, request.case))
    specs = task.output_specs(request.case.sizes)
    for found, (name, spec) in zip(_caller(function, task, tensors)(tensors), specs.items(), strict=False):
        if tuple(found.shape) != spec.shape:
            raise ReferenceProblem(f"the reference returns {name} of shape {list(found.shape)} there")
    return Judgement((), 0.0, False, 0.0)


def warm_up(function: Callable[..., Any], request: JudgeRequest) -> Judgement:
    """Judge a small case on the GPU, so that libraries are loaded before anybody waits for them."""
    task = case_task(request.task, request.case)
    tensors = _tensors(_drawn(task, request.case), on_gpu=True)
    call = _caller(function, task, tensors)
    expected = expectations(call, tensors, task.precision)
    comparisons = [compare(one.own.clone(), one, traits=traits_of(task, request.case)) for one in expected]
    return Judgement((), max((one.ratio for one in comparisons), default=0.0), False, 0.0)


def _judge_large(
    function: Callable[..., Any],
    task: Task,
    request: JudgeRequest,
    results: tuple[ReturnedTensor | SharedTensor, ...],
) -> Judgement:
    case = request.case
    torch.cuda.reset_peak_memory_stats()
    try:
        with contextlib.ExitStack() as stack:
            made: dict[str, torch.Tensor] = {}
            for one in (*request.outputs, *results):
                if isinstance(one, ReturnedTensor):
                    made[one.name] = to_torch(one.spec, one.content).to(_gpu())
                else:
                    from tilewright.devices.cuda.ipc_memory import open_shared  # needs the driver's bindings

                    made[one.name] = stack.enter_context(open_shared(one, torch.cuda.current_device()))
            tensors = _tensors(request.inputs or _drawn(task, case), on_gpu=True)
            call = LargeCall(
                task,
                case.sizes,
                _caller(function, task, tensors),
                tensors,
                {name: made[name] for name in _names(task)},
                traits_of(task, case),
                lambda expected, comparison: is_telling(task, case, expected, comparison),
            )
            found = judge_large(call)
    except NotOpened as error:
        return Judgement((), 0.0, True, 0.0, not_opened=str(error))
    except torch.OutOfMemoryError as error:
        reason = str(error).split(". ")[0]
        return Judgement((), 0.0, True, 0.0, not_judged=f"the GPU's memory does not hold what judging takes: {reason}")
    held = torch.cuda.max_memory_allocated()
    return Judgement(found.wrong, found.ratio, found.telling, 0.0, found.elements, found.parts, held, note=found.note)


def _names(task: Task) -> tuple[str, ...]:
    return (*(one.name for one in task.outputs), *(one.name for one in task.tensors if one.in_place))


def is_telling(task: Task, case: Case, expected: Expected, comparison: Comparison) -> bool:
    """Whether a comparison proves anything: always for the task's values, else if the reference is finite and
    well-conditioned. Of mixed values, that is decided for each tile."""
    if case.values == TASK or traits_of(task, case).mixed:
        return True
    return are_numbers(expected.truth, expected.own) and comparison.leeway <= MOST_LEEWAY


def _expected(function: Callable[..., Any], task: Task, case: Case, inputs: Sequence[InputTensor]) -> _Known:
    key = f"{task.hash} {case}"
    known = _known.get(key)
    if known is None:
        tensors = _tensors(inputs or _drawn(task, case))
        known = tensors, expectations(_caller(function, task, tensors), tensors, task.precision)
        if sum(one.numel() for one in tensors.values()) <= _KEPT_ELEMENTS:
            if len(_known) >= _KEPT:
                del _known[next(iter(_known))]
            _known[key] = known
    return known


def _caller(function: Callable[..., Any], task: Task, tensors: Tensors) -> Call:
    """The reference as a function of its tensors. On a GPU, tensors that it creates are created there."""
    on_gpu = any(one.is_cuda for one in tensors.values())

    def call(given: Tensors) -> tuple[torch.Tensor, ...]:
        with _gpu() if on_gpu else contextlib.nullcontext():
            return call_reference(function, task, given)

    return call


def _drawn(task: Task, case: Case) -> list[InputTensor]:
    specs = task.specs(case.sizes)
    return [InputTensor(name, specs[name], Data(content)) for name, content in draw_inputs(task, case).items()]


def _tensors(inputs: Sequence[InputTensor], *, on_gpu: bool = False) -> Tensors:
    """The inputs as the kernel had them; on a GPU if there is one and they are large or were generated from a seed."""
    if all(isinstance(one.content, Data) for one in inputs):
        tensors = {one.name: to_torch(one.spec, one.content.content) for one in inputs if isinstance(one.content, Data)}
        small = sum(one.numel() for one in tensors.values()) < _WORTH_A_GPU
        if not on_gpu and (small or not torch.cuda.is_available()):
            return tensors
        return {name: one.to(_gpu()) for name, one in tensors.items()}
    held = {one.name: allocate(one.spec, _gpu()) for one in inputs}
    for one in inputs:
        fill(held[one.name], one.content)
    return {name: one.tensor for name, one in held.items()}


def _gpu() -> torch.device:
    """The first GPU, with TF32 disabled."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    return torch.device("cuda")


# -- calls without a task --


def judge_call(function: Callable[..., Any], request: CallRequest) -> CallJudgement:
    """Compare every result and every tensor changed in place with the reference. Inputs are generated again from their
    seeds."""
    numbers = {number.name: number.value for number in request.numbers}
    tensors = {one.name: to_torch(one.spec, bytes(input_bytes(one))) for one in request.inputs}

    def call(given: Tensors) -> tuple[torch.Tensor, ...]:
        arguments = {name: given[name].clone() if name in given else numbers.get(name) for name in request.names}
        return call_by_name(function, arguments, list(request.in_place), len(request.results))

    outputs = {output.name: output for output in request.outputs}
    verdicts = []
    names = (*request.results, *request.in_place)
    precision = Precision.DEFAULT_F32 if computed_in_f32(lambda: call(tensors)) else Precision.DTYPE
    for name, expected in zip(names, expectations(call, tensors, precision), strict=True):
        found = to_torch(outputs[name].spec, outputs[name].content)
        verdicts.append(_verdict_of(name, found, expected, request.tolerance, tensors))
    return CallJudgement(tuple(verdicts))


def _verdict_of(
    name: str, found: torch.Tensor, expected: Expected, tolerance: float | None, inputs: Tensors
) -> ResultVerdict:
    if tuple(found.shape) != tuple(expected.truth.shape):
        message = f"its shape is {list(found.shape)}, the reference returns {list(expected.truth.shape)}"
        return ResultVerdict(name, False, message, None, None)
    if found.numel() == 0:
        return ResultVerdict(name, True, "no elements", 0.0, 0.0)
    comparison = compare(found, expected, tolerance)
    worst = float(comparison.error.max())
    if comparison.right:
        own = comparison.own_worst
        message = "equal" if own is None else f"worst error {worst:.3g}, the reference's own at this dtype {own:.3g}"
        return ResultVerdict(name, True, message, worst, own)
    wrong = diagnose(name, found, expected, comparison, inputs)
    first = wrong.first[0]
    message = (
        f"{wrong.wrong} of {wrong.elements} elements are off, first at {list(first.index)}: {first.got:.6g}, expected "
        f"{first.expected:.6g}, where {first.allowed:.3g} of error is allowed; "
        f"{wrong.pattern.value}: {wrong.description}"
    )
    return ResultVerdict(name, False, message, wrong.worst_error, wrong.reference_error)


# -- sampled blocks --

_MOST_ELEMENTS = 3 << 20  # of the tensors at the judged places
_MOST_WHOLE = 48 << 20  # likewise, where no place can be omitted
_MOST_WORK = 48_000_000  # of the reference there: a fraction of a second, run several times

_Places = dict[str, tuple[int, ...]]


def judge_written(function: Callable[..., Any], request: WrittenRequest) -> Judgement:
    """Judge what sampled blocks wrote. Not telling if it is too much work, or if the reference is not independent."""
    case = Case(request.drawn, request.seed, request.values)
    task = case_task(request.task, case)
    places = _judged_places(request)
    if places is None:
        return Judgement((), 0.0, False, 0.0)
    contents = draw_inputs(task, case)
    specs = task.specs(request.drawn)
    drawn = {name: to_torch(spec, contents[name]) for name, spec in specs.items()}
    among = {name: tuple(place % request.drawn[name] for place in found) for name, found in places.items()}
    tensors = taken(task, drawn, among)

    def call(given: Tensors) -> tuple[torch.Tensor, ...]:
        return call_reference(function, task, given)

    expected = expectations(call, tensors, task.precision)
    parts = {part.name: part for part in request.parts}
    judged = [number for number, output in enumerate(task.outputs[: len(expected)]) if output.name in parts]
    outputs = [task.outputs[number] for number in judged]
    made = [
        _found(parts[output.name], output.shape, TORCH_DTYPE[output.dtype], expected[number], places)
        for number, output in zip(judged, outputs, strict=True)
    ]

    def of_judged(given: Tensors) -> tuple[torch.Tensor, ...]:
        return tuple(one for at, one in enumerate(call(given)) if at in judged)

    wanted, comparisons = compare_all(
        [found for found, _ in made],
        [expected[number] for number in judged],
        traits_of(task, case),
        Recheck(of_judged, tensors, task.precision, AGAIN_SEED),
    )
    telling = all(is_telling(task, case, one, other) for one, other in zip(wanted, comparisons, strict=True))
    wrong = [
        _at_own_places(diagnose(output.name, found, one, comparison, tensors), output.shape, places, count)
        for output, (found, count), one, comparison in zip(outputs, made, wanted, comparisons, strict=True)
        if not comparison.right
    ]
    single = {name for name, found in places.items() if len(found) == 1}  # one place depends on no other
    if wrong and not set(places) <= {*independent_at(function, task, tensors), *single}:
        telling = False  # it is not independent at these sizes
    worst = max((one.ratio for one in comparisons), default=0.0)
    compared = sum(count for _, count in made)
    return Judgement(tuple(wrong) if telling else (), worst, telling and compared > 0, 0.0)


def _judged_places(request: WrittenRequest) -> _Places | None:
    """The places of each independent dimension, as many of the written ones as the reference can evaluate."""
    task = request.task
    shapes = {one.name: one.shape for one in task.outputs}
    found: dict[str, set[int]] = {name: set() for name in request.independent}
    odd: dict[str, set[int]] = {name: set() for name in request.independent}
    for part in request.parts:
        for axis, name in enumerate(shapes[part.name]):
            if name in found:
                found[str(name)] |= set(part.indices[axis])
                odd[str(name)] |= set(part.odd[axis]) if part.odd else set()
    places = {name: sorted(among) for name, among in found.items()}
    while True:
        sizes = task.complete({**request.sizes, **{name: len(among) for name, among in places.items()}})
        elements = sum(spec.numel for spec in (*task.specs(sizes).values(), *task.output_specs(sizes).values()))
        work = work_of(task, sizes)
        if elements <= _MOST_ELEMENTS and work <= _MOST_WORK:
            return {name: tuple(among) for name, among in places.items()}
        longest = max(places, key=lambda name: len(places[name]), default=None)
        if longest is None or len(places[longest]) < 2:
            # It cannot be reduced. A call with one step per element is still affordable.
            alone = elements <= _MOST_WHOLE and work <= elements
            return {name: tuple(among) for name, among in places.items()} if alone else None
        fewer = sorted({*_thinned(places[longest]), *odd[longest]})
        places[longest] = fewer if len(fewer) < len(places[longest]) else _thinned(fewer)


def _thinned(places: list[int]) -> list[int]:
    """Half of them, including the first and the last, at uneven distances."""
    count = len(places)
    wanted = count // 2
    if wanted < 2:
        return places[-1:]
    kept = {number * (count - 1) // (wanted - 1) for number in range(wanted)}
    return [places[number] for number in sorted(kept)]


def _found(
    part: WrittenPart, shape: tuple[str | int, ...], dtype: torch.dtype, wanted: Expected, places: _Places
) -> tuple[torch.Tensor, int]:
    """The output at the judged places, filled with the truth where nothing was written, and how much was written."""
    counts = [len(indices) for indices in part.indices]
    content = torch.frombuffer(bytearray(part.content), dtype=torch.uint8).view(dtype).view(counts)
    written = torch.frombuffer(bytearray(part.written), dtype=torch.uint8).view(counts).bool()
    right = wanted.truth if dtype.is_floating_point else wanted.own
    found = right.to(dtype).clone()
    if dtype.is_floating_point:
        found = torch.where(wanted.truth.isfinite(), found, wanted.own.to(dtype))
    target: list[torch.Tensor] = []
    for axis, name in enumerate(shape):
        among = {place: number for number, place in enumerate(places[str(name)])} if name in places else None
        known = part.indices[axis]
        kept = [number for number, place in enumerate(known) if among is None or place in among]
        content, written = (one.index_select(axis, torch.tensor(kept)) for one in (content, written))
        target.append(torch.tensor([known[n] if among is None else among[known[n]] for n in kept]))
    at = torch.meshgrid(*target, indexing="ij") if target else ()
    found[at] = torch.where(written, content, found[at])
    return found, int(written.sum())


def _at_own_places(one: WrongOutput, shape: tuple[str | int, ...], places: _Places, judged: int) -> WrongOutput:
    """The diagnosis with indices of the full-size call, without a pattern: the places are far apart."""
    first = tuple(
        replace(
            element,
            index=tuple(
                places[str(name)][place] if name in places else place
                for name, place in zip(shape, element.index, strict=True)
            ),
        )
        for element in one.first
    )
    description = (
        f"in a few blocks run at the task's own sizes, {one.wrong} of the {judged} elements looked at; "
        "smaller cases were right"
    )
    return replace(one, elements=judged, description=description, first=first)
