"""An operation: ordered kernel files of one op as a function on CUDA tensors, or, emulated, on CPU tensors.

A call seen before goes through `fast_path`; this module is the slow way, taken once for each kind of call: bind,
check, choose a file, build, load, run, remember. It copies no tensor. Emulated calls always take it: they cost
milliseconds. Whatever torch does around a call (compiling, gradients, fake tensors) happens in `torch_op`: a call that
is not ordinary is made through the operator there, whose kernel is `run_values` here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from tilewright.devices.cuda.executor import executor_of
from tilewright.kernel_file import (
    CallError,
    ConstantSets,
    Dispatcher,
    KernelFile,
    NoneApplies,
    Op,
    Reason,
    Refused,
    Signature,
    TunedChoices,
    try_evaluate,
)
from tilewright.records import ALL_CHECKS, PROFILES, Check, Emulation, GpuProfile
from tilewright.runtime.backward import Backward, common_leads
from tilewright.runtime.call_devices import (
    CallDevice,
    check_on_cpu,
    check_tensors,
    device_of_call,
    emulated_profile,
    named_profile,
    resolve_device,
)
from tilewright.runtime.cuda_backend import Builds, CudaBackend
from tilewright.runtime.emulator_backend import (
    CallTensors,
    EmulatedCall,
    EmulatedPlan,
    EmulatorBackend,
    full_call,
    plain_call,
)
from tilewright.runtime.entries import make_entry, with_in_place_checks
from tilewright.runtime.errors import CallRefused, LoadError
from tilewright.runtime.explanation import Explanation, explain_none, explain_selected
from tilewright.runtime.fallback import Fallback, NoKernelMatches, Reference, answer
from tilewright.runtime.fast_path import CallLayout, EntryCache, is_plain, make_fast_path, make_key_function
from tilewright.runtime.ordinary import are_plain_tensors, no_torch_modes_active, refuse_distributed
from tilewright.runtime.returned import OutputSpec
from tilewright.runtime.specs import abstract_arguments, spec_of, unsupported_reasons
from tilewright.runtime.torch_ops import operator_of

Device = int | str | torch.device | None


class Operation:
    """Call it as the op line says. Made by `tilewright.load`."""

    def __init__(
        self,
        files: Sequence[KernelFile],
        tuned: TunedChoices | None = None,
        reference: Reference | None = None,
        strict: bool = False,
        returned: OutputSpec | None = None,
        backward: Backward | None = None,
    ) -> None:
        """`returned` is the form of what the reference returns, where it is not that of a plain answer."""
        self.files = tuple(files)
        self.op: Op = files[0].plan.op
        self.fallback = Fallback(self.op, reference, strict)
        self.signature = Signature(self.op)
        self.__name__ = self.op.name
        self.returned = returned
        self.backward = backward
        self.__doc__ = f"{self.signature}, from {', '.join(file.name for file in files)}"
        self._tuned = tuned or TunedChoices()
        self._deciding = _deciding(self.files)
        self._builds = Builds()
        self._devices: dict[int, CudaBackend] = {}
        self._emulated: dict[GpuProfile, EmulatorBackend] = {}
        self._lock = threading.Lock()
        self._count = len(self.op.parameters)
        # Ways of giving arguments that fit: how many by position and which by name -> the rest with its defaults.
        self._ways: dict[tuple[object, ...], tuple[tuple[str, Any], ...]] = {}
        self._tensor_positions = [i for i, p in enumerate(self.op.parameters) if p.scalar is None]
        self._number_positions = [i for i, p in enumerate(self.op.parameters) if p.scalar is not None]
        # The first file whose choice may hang on numbers that are not part of a key.
        late = [number for number, file in enumerate(self.files) if file.compiled.late_lets]
        self._first_undecided = late[0] if late else len(self.files)
        self._recent = EntryCache()
        form = CallLayout(self.op, self._deciding)
        self._key = make_key_function(form)
        self._quick = make_fast_path(form, self._recent, self._slow)
        # What the operator runs: the same without asking what else is going on.
        self.run_values = make_fast_path(form, self._recent, self._run, check_modes=False)
        self.torch_op = operator_of(self, lambda: Operation(self.files, self._tuned)).overload

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on CUDA tensors, or emulated on CPU tensors; answers the result, a tuple of several, or None if all work
        is in place."""
        if is_dynamo_compiling():
            given = self._in_order(args, kwargs)
            return self._formed(self.torch_op(*given), given)
        try:
            values = args if not kwargs and len(args) == self._count else self._arranged(args, kwargs)
            result = self._quick(*values)
        except NoKernelMatches as refusal:
            none, regular = refusal.none, refusal.values
        else:
            return result if self.returned is None else self._formed(result, values)
        if self.returned is None:
            return self.fallback.take(none, regular)
        self.fallback.accept(none)
        return self._formed(answer(self.op, self.fallback.results(regular)), regular)

    def attempt(self, *args: Any, **kwargs: Any) -> Any:
        """A call without a last resort: raises `NoKernelMatches`, with the regular values, where no file takes it."""
        values = self._arranged(args, kwargs)
        return self._formed(self._quick(*values), values)

    def _formed(self, result: Any, values: Sequence[Any]) -> Any:
        """What was computed, in the form in which the reference returns it."""
        if self.returned is None:
            return result
        results = (result,) if len(self.op.results) == 1 else result or ()
        return self.returned.fill(results, dict(zip(self.signature.names, values, strict=True)))

    def __repr__(self) -> str:
        return f"<Operation {self.signature}; {len(self.files)} file{'s' if len(self.files) != 1 else ''}>"

    def with_backward(self, backward: Operation, gradients: Mapping[str, str], by: Sequence[str]) -> Operation:
        """The same with kernels for the backward pass.

        `gradients`: which of the backward's parameters is the gradient of which result; `by`: which inputs its results
        are gradients of. Its other parameters are called as the forward's parameters and results are, and these are
        kept between the passes. Leading dimensions of the forward's `lead` line are laid flat for it, and calls that
        its files do not take get the gradients of the forward's reference.
        """
        pair = Backward(backward, dict(gradients), tuple(by), leads=common_leads(self.files))
        pair.check(self.op)
        last = self.fallback
        return Operation(self.files, self._tuned, last.reference, last.strict, self.returned, pair)

    # -- copies --

    def __deepcopy__(self, memo: object) -> Operation:
        """Itself: nothing of it changes, and what it has built serves every copy of a model."""
        return self

    def __copy__(self) -> Operation:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """By where its files lie and what they say: loaded again, and refused if they have become others."""
        from tilewright.runtime.files import load_again  # which knows operations

        names = tuple(file.name for file in self.files)
        identities = tuple(file.identity for file in self.files)
        last = self.fallback
        return load_again, (names, identities, last.reference, last.strict, self.returned, self.backward)

    def __prepare_scriptable__(self) -> Any:
        """Asked by `torch.jit.script`, which reads Python source, and there is none."""
        raise CallRefused(
            f"{self.op.name}: torch.jit.script cannot read a kernel file; use torch.jit.trace, torch.compile or "
            f"torch.export, or call torch.ops.{self.torch_op.name().replace('::', '.')} in the scripted function"
        )

    # -- ahead of a call --

    def prepare(self, *args: Any, device: Device = None, **kwargs: Any) -> None:
        """Build and load what calls like this one need, so that they cost no more, or can be captured in a graph.

        Tensors are given as tensors (on any device; only their layout counts), as `TensorSpec`, or as text such as
        `"4096x1024:bf16"`. Numbers that decide nothing may be left out. Raises `NoKernelApplies` where no file does.
        Without a CUDA device, or with `device="cpu"`, it is the emulator that is made ready.
        """
        arguments = abstract_arguments(self.signature, self._deciding, args, kwargs)
        outcome = self._at(resolve_device(self.op.name, device, (*args, *kwargs.values()))).ready(arguments)
        if isinstance(outcome, NoneApplies):
            raise self.fallback.refusal(outcome)

    def explain(
        self, *args: Any, gpu: GpuProfile | str | None = None, device: Device = None, **kwargs: Any
    ) -> Explanation:
        """Which file takes such a call and with what launches, or why none does. Builds, and runs nothing.

        Arguments are as for `prepare`. `gpu` asks about another GPU than this machine's: a profile, or the name of a
        known one such as `"H200"`; it needs no GPU here. Without a CUDA device it is the emulated GPU that is meant.
        """
        arguments = abstract_arguments(self.signature, self._deciding, args, kwargs)
        emulator: EmulatorBackend | None = None
        if gpu is None:
            place = self._at(resolve_device(self.op.name, device, (*args, *kwargs.values())))
            dispatcher = place.dispatcher
            emulator = place if isinstance(place, EmulatorBackend) else None
        else:  # a count of its own: asking must not use up what calls may build
            dispatcher = Dispatcher(self.files, named_profile(gpu), self._tuned, constant_sets=ConstantSets())
        selection = dispatcher.select(arguments)
        if isinstance(selection, NoneApplies):
            return explain_none(self.op.name, dispatcher.gpu, selection, self.fallback.may_run)
        earlier = ((file, try_evaluate(file, arguments, dispatcher.gpu)) for file in self.files[: selection.index])
        refused = tuple(Reason(file.name, outcome.problem) for file, outcome in earlier if isinstance(outcome, Refused))
        build, why = self._builds.build(selection.evaluation), dispatcher.why(selection, arguments)
        explanation = explain_selected(self.op.name, selection, build, refused, why)
        if emulator is None:
            return explanation
        return replace(explanation, not_emulable=emulator.why_not(selection))

    # -- a call --

    def _arranged(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """One value for each parameter, in order; a way of calling is checked the first time it is used."""
        way = (len(args), *kwargs)
        rest = self._ways.get(way)
        if rest is None:
            self.signature.normalise(args, kwargs)
            rest = self._ways[way] = tuple((p.name, p.default) for p in self.op.parameters[len(args) :])
        return (*args, *[kwargs.get(name, default) for name, default in rest])

    def _in_order(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """`_arranged` in words that Dynamo can trace: no cache, and the operator checks the types."""
        values = list(args)
        for parameter in self.op.parameters[len(args) :]:
            if parameter.name not in kwargs and not parameter.has_default and not parameter.optional:
                raise CallError(f"{self.op.name}() misses {parameter.name!r}")
            values.append(kwargs.get(parameter.name, parameter.default))
        if len(values) > self._count or any(name not in self.signature.names[len(args) :] for name in kwargs):
            raise CallError(f"{self.op.name}() got an argument twice, or one that it has not")
        return values

    def _slow(self, *values: Any) -> Any:
        """A call not seen before, or one that is wrong, or one in which torch has a part."""
        regular = self.signature.normalise(values, {})
        tensors = tuple([regular[i] for i in self._tensor_positions])
        check_tensors(self.op, tensors)
        wants_gradients = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
        if wants_gradients or not no_torch_modes_active() or not are_plain_tensors(tensors):
            refuse_distributed(self.op, tensors)
            return self.torch_op(*regular)
        return self.run_values(*values)

    def _through_torch(self, tensors: tuple[Any, ...], numbers: tuple[Any, ...]) -> Any:
        return self.torch_op(*self._values(tensors, numbers))

    def _run(self, *values: Any) -> Any:
        """A call not seen before, on tensors with content; raises `NoKernelMatches`."""
        regular = self.signature.normalise(values, {})
        tensors = tuple([regular[i] for i in self._tensor_positions])
        place = device_of_call(self.op, tensors)
        reasons = unsupported_reasons(self.op, regular)
        if reasons:
            raise NoKernelMatches(NoneApplies(reasons), regular)
        if isinstance(place, GpuProfile):
            return self._emulated_plainly(place, regular, tensors)
        key = self._key(*values) if is_plain(self.op, values) else None
        entry = self._recent.find(key)
        if entry is None:
            return self._choose_and_run(place, regular, tensors, key)
        return entry(tensors, _addresses(tensors), tuple([regular[i] for i in self._number_positions]))

    def _choose_and_run(
        self, index: int, regular: tuple[Any, ...], tensors: tuple[Any, ...], key: tuple[Any, ...] | None
    ) -> Any:
        """Choose a file and run it; remember the way under `key` if there is one."""
        arguments = self._arguments(regular)
        ready = self._on(index).ready(arguments)
        if isinstance(ready, NoneApplies):
            raise NoKernelMatches(ready, regular)
        specs = [arguments[self.signature.names[i]] for i in self._tensor_positions]
        requires_grad = any(tensor is not None and tensor.requires_grad for tensor in tensors)
        entry = make_entry(ready, self.op, specs, self._again, self._through_torch if requires_grad else None)
        if key is not None and ready.selected.index <= self._first_undecided:
            self._recent.add(key, entry)
        return entry(tensors, _addresses(tensors), tuple([regular[i] for i in self._number_positions]))

    def _again(self, tensors: tuple[Any, ...], numbers: tuple[Any, ...]) -> Any:
        """A call that its entry could not serve, because its numbers make a `let` of the chosen file fail."""
        place = device_of_call(self.op, tensors)
        assert isinstance(place, int)  # an entry is made for CUDA calls alone
        regular = self.signature.normalise(self._values(tensors, numbers), {})
        return self._choose_and_run(place, regular, tensors, None)

    def _values(self, tensors: tuple[Any, ...], numbers: tuple[Any, ...]) -> list[Any]:
        """One value for each parameter, in order."""
        values: list[Any] = [None] * self._count
        for positions, given in ((self._tensor_positions, tensors), (self._number_positions, numbers)):
            for position, value in zip(positions, given, strict=True):
                values[position] = value
        return values

    def _arguments(self, regular: Sequence[Any]) -> dict[str, Any]:
        """The call as the evaluator wants it: a spec in the place of each tensor."""
        pairs = zip(self.op.parameters, regular, strict=True)
        return {p.name: spec_of(v) if p.scalar is None and v is not None else v for p, v in pairs}

    def _on(self, index: int) -> CudaBackend:
        with self._lock:
            found = self._devices.get(index)
            if found is None:
                found = self._devices[index] = CudaBackend(self.files, self._tuned, executor_of(index), self._builds)
            return found

    def _at(self, place: CallDevice) -> CudaBackend | EmulatorBackend:
        if isinstance(place, int):
            return self._on(place)
        with self._lock:
            found = self._emulated.get(place)
            if found is None:
                found = self._emulated[place] = EmulatorBackend(self.files, self._tuned, place, self._builds)
            return found

    # -- an emulated call --

    def emulate(
        self,
        *args: Any,
        gpu: GpuProfile | str | None = None,
        checks: Iterable[Check | str] = ALL_CHECKS,
        blocks: int | None = None,
        schedules: int = 1,
        seed: int = 0,
        budget: int = 4_000_000_000,
        workers: int = 1,
        **kwargs: Any,
    ) -> EmulatedCall:
        """Run on CPU tensors in the emulator and answer results, findings and counts together.

        `gpu` is what to emulate (else as a plain call chooses); `blocks` samples so many blocks of each launch, for
        shapes too large to run whole; further `schedules` are random, by `seed`; `budget` is in thread instructions;
        `workers=0` uses all cores, and what a race does then differs from run to run.
        Raises what a call raises, but findings are part of the answer.
        """
        regular = self.signature.normalise(args, kwargs)
        tensors = tuple([regular[i] for i in self._tensor_positions])
        check_tensors(self.op, tensors)
        check_on_cpu(self.op, tensors)
        reasons = unsupported_reasons(self.op, regular)
        if reasons:
            raise self.fallback.refusal(NoneApplies(reasons))
        profile = emulated_profile() if gpu is None else named_profile(gpu)
        ready = self._at(profile).ready(self._arguments(regular))
        if isinstance(ready, NoneApplies):
            raise self.fallback.refusal(ready)
        assert isinstance(ready, EmulatedPlan)
        emulation = Emulation(
            checks=tuple(Check(check) for check in checks),
            schedules=schedules,
            seed=seed,
            instruction_budget=budget,
            sampled_blocks=blocks,
            workers=workers,
        )
        answer: EmulatedCall = self._emulated_with(
            regular, tensors, lambda call: full_call(ready, call, emulation, profile.name)
        )
        return answer

    def _emulated_plainly(self, profile: GpuProfile, regular: tuple[Any, ...], tensors: tuple[Any, ...]) -> Any:
        ready = self._at(profile).ready(self._arguments(regular))
        if isinstance(ready, NoneApplies):
            raise NoKernelMatches(ready, regular)
        assert isinstance(ready, EmulatedPlan)
        return self._emulated_with(regular, tensors, lambda call: plain_call(ready, call))

    def _emulated_with(
        self, regular: tuple[Any, ...], tensors: tuple[Any, ...], run: Callable[[CallTensors], Any]
    ) -> Any:
        """A call under the rules for tensors changed in place, which are those of a call on a GPU."""
        arguments = self._arguments(regular)
        specs = tuple(arguments[self.signature.names[i]] for i in self._tensor_positions)
        call = CallTensors(self.op, specs, tensors)
        entry = with_in_place_checks(lambda *_: run(call), self.op, specs)
        return entry(tensors, _addresses(tensors), ())


def _addresses(tensors: Sequence[torch.Tensor | None]) -> tuple[int, ...]:
    return tuple([0 if tensor is None else tensor.data_ptr() for tensor in tensors])


def _deciding(files: Sequence[KernelFile]) -> frozenset[str]:
    """The numbers that decide something in some file; raises `LoadError` where the files are not of one op."""
    try:  # which profile is asked makes no difference to this
        return Dispatcher(files, PROFILES["H200"]).deciding
    except ValueError as error:
        raise LoadError(str(error)) from error
