"""`Operation`: ordered kernel files of one op as a function on CUDA tensors, or emulated on CPU tensors.

Repeated calls go through `fast_path`; the slow path here runs once per cache key: bind, check, select a file, build,
load, run, cache. No tensor is copied. Emulated calls always take it. Calls that torch takes part in (compile, autograd,
fake tensors) go through the custom op in `torch_op`, whose kernel is `run_values`.
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
from tilewright.runtime.backends import (
    Builds,
    CallTensors,
    CudaBackend,
    EmulatedCall,
    EmulatedPlan,
    EmulatorBackend,
    full_call,
    plain_call,
)
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
from tilewright.runtime.entries import make_entry, with_in_place_checks
from tilewright.runtime.errors import CallRefused, LoadError
from tilewright.runtime.explanation import Explanation, explain_selected
from tilewright.runtime.fallback import Fallback, NoKernelMatches, Reference, unwrap_results
from tilewright.runtime.fast_path import (
    CallLayout,
    EntryCache,
    are_plain_tensors,
    is_plain,
    is_transformed,
    make_fast_path,
    make_key_function,
    no_torch_modes_active,
    refuse_distributed,
)
from tilewright.runtime.returned import OutputSpec
from tilewright.runtime.specs import abstract_arguments, spec_of, unsupported_reasons
from tilewright.runtime.torch_op import operator_of

Device = int | str | torch.device | None


class Operation:
    """A callable with the signature of the op line. Made by `tilewright.load`."""

    def __init__(
        self,
        files: Sequence[KernelFile],
        tuned: TunedChoices | None = None,
        reference: Reference | None = None,
        strict: bool = False,
        returned: OutputSpec | None = None,
        backward: Backward | None = None,
    ) -> None:
        """`returned` is the structure of the reference's output, where it is not a tensor or tuple of tensors."""
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
        # Checked calling conventions: (positional count, *keywords) -> remaining parameters with their defaults.
        self._conventions: dict[tuple[object, ...], tuple[tuple[str, Any], ...]] = {}
        self._tensor_positions = [i for i, p in enumerate(self.op.parameters) if p.scalar is None]
        self._number_positions = [i for i, p in enumerate(self.op.parameters) if p.scalar is not None]
        # The first file whose selection may depend on numbers outside the cache key.
        late = [number for number, file in enumerate(self.files) if file.compiled.late_lets]
        self._first_undecided = late[0] if late else len(self.files)
        self._entries = EntryCache()
        form = CallLayout(self.op, self._deciding)
        self._key = make_key_function(form)
        self._call = make_fast_path(form, self._entries, self._slow)
        # The custom op's kernel: the same without the check for torch modes.
        self.run_values = make_fast_path(form, self._entries, self._run, check_modes=False)
        self.torch_op = operator_of(self, lambda: Operation(self.files, self._tuned)).overload

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on CUDA tensors, or emulated on CPU tensors; returns a tensor, a tuple, or None if the op is in place."""
        if is_dynamo_compiling():
            given = self._traceable_values(args, kwargs)
            return self._structured(self.torch_op(*given), given)
        try:
            values = args if not kwargs and len(args) == self._count else self._positional(args, kwargs)
            result = self._call(*values)
        except NoKernelMatches as refusal:
            none, regular = refusal.none, refusal.values
        else:
            return result if self.returned is None else self._structured(result, values)
        if self.returned is None:
            return self.fallback.run(none, regular)
        self.fallback.warn_or_raise(none)
        return self._structured(unwrap_results(self.op, self.fallback.results(regular)), regular)

    def attempt(self, *args: Any, **kwargs: Any) -> Any:
        """A call without the fallback: raises `NoKernelMatches`, with the normalised values, where no file takes it."""
        values = self._positional(args, kwargs)
        return self._structured(self._call(*values), values)

    def _structured(self, result: Any, values: Sequence[Any]) -> Any:
        """The results in the structure that the reference returns."""
        if self.returned is None:
            return result
        results = (result,) if len(self.op.results) == 1 else result or ()
        return self.returned.fill(results, dict(zip(self.signature.names, values, strict=True)))

    def __repr__(self) -> str:
        return f"<Operation {self.signature}; {len(self.files)} file{'s' if len(self.files) != 1 else ''}>"

    def with_backward(self, backward: Operation, gradients: Mapping[str, str], by: Sequence[str]) -> Operation:
        """A copy with kernels for the backward pass.

        `gradients` maps each result to the backward's parameter for its gradient; `by` names the inputs that the
        backward's results are gradients of. Its other parameters must have names of the forward's parameters or
        results, which are saved for it. Leading dimensions of a `lead` line are flattened. Calls that its files do not
        take use the reference's gradients.
        """
        pair = Backward(backward, dict(gradients), tuple(by), leads=common_leads(self.files))
        pair.check(self.op)
        last = self.fallback
        return Operation(self.files, self._tuned, last.reference, last.strict, self.returned, pair)

    # -- copies and pickles --

    def __deepcopy__(self, memo: object) -> Operation:
        """Itself: it is immutable, and copies of a model share its builds."""
        return self

    def __copy__(self) -> Operation:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as paths and digests: loaded again, and refused if the files have changed."""
        from tilewright.runtime.files import load_again  # imports this module

        names = tuple(file.name for file in self.files)
        identities = tuple(file.identity for file in self.files)
        last = self.fallback
        return load_again, (names, identities, last.reference, last.strict, self.returned, self.backward)

    def __prepare_scriptable__(self) -> Any:
        """Called by `torch.jit.script`, which needs Python source."""
        raise CallRefused(
            f"{self.op.name}: torch.jit.script cannot read a kernel file; use torch.jit.trace, torch.compile or "
            f"torch.export, or call torch.ops.{self.torch_op.name().replace('::', '.')} in the scripted function"
        )

    # -- prepare and explain --

    def prepare(self, *args: Any, device: Device = None, **kwargs: Any) -> None:
        """Build and load the kernels for such a call in advance, for example before a CUDA graph capture.

        Tensors are given as tensors (on any device; only their layout counts), as `TensorSpec`, or as text such as
        `"4096x1024:bf16"`. Numbers that do not affect the selection may be omitted. Raises `NoKernelApplies` where no
        file takes the call. Without a CUDA device, or with `device="cpu"`, prepares the emulator.
        """
        arguments = abstract_arguments(self.signature, self._deciding, args, kwargs)
        outcome = self._at(resolve_device(self.op.name, device, (*args, *kwargs.values()))).prepare(arguments)
        if isinstance(outcome, NoneApplies):
            raise self.fallback.error(outcome)

    def explain(
        self, *args: Any, gpu: GpuProfile | str | None = None, device: Device = None, **kwargs: Any
    ) -> Explanation:
        """Which file takes such a call and with what launches, or why none does. Builds, but runs nothing.

        Arguments are as for `prepare`. `gpu` explains for another GPU, which need not be present: a profile, or a name
        such as `"H200"`. Without a CUDA device the emulated GPU is explained.
        """
        arguments = abstract_arguments(self.signature, self._deciding, args, kwargs)
        emulator: EmulatorBackend | None = None
        if gpu is None:
            place = self._at(resolve_device(self.op.name, device, (*args, *kwargs.values())))
            dispatcher = place.dispatcher
            emulator = place if isinstance(place, EmulatorBackend) else None
        else:  # a count of its own: `explain` must not use up the limit on builds
            dispatcher = Dispatcher(self.files, named_profile(gpu), self._tuned, constant_sets=ConstantSets())
        selection = dispatcher.select(arguments)
        if isinstance(selection, NoneApplies):
            reasons, falls_back = selection.reasons, self.fallback.may_run
            return Explanation(self.op.name, dispatcher.gpu.name, None, (), (), (), (), reasons, falls_back)
        earlier = ((file, try_evaluate(file, arguments, dispatcher.gpu)) for file in self.files[: selection.index])
        refused = tuple(Reason(file.name, outcome.problem) for file, outcome in earlier if isinstance(outcome, Refused))
        build, why = self._builds.build(selection.evaluation), dispatcher.why(selection, arguments)
        explanation = explain_selected(self.op.name, selection, build, refused, why)
        if emulator is None:
            return explanation
        return replace(explanation, not_emulable=emulator.why_not(selection))

    # -- the slow path --

    def _positional(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """One value per parameter, in order; each calling convention is checked on first use."""
        convention = (len(args), *kwargs)
        rest = self._conventions.get(convention)
        if rest is None:
            self.signature.normalise(args, kwargs)
            rest = self._conventions[convention] = tuple((p.name, p.default) for p in self.op.parameters[len(args) :])
        return (*args, *[kwargs.get(name, default) for name, default in rest])

    def _traceable_values(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """`_positional` as Dynamo can trace it: no cache, and the custom op checks the types."""
        values = list(args)
        for parameter in self.op.parameters[len(args) :]:
            if parameter.name not in kwargs and not parameter.has_default and not parameter.optional:
                raise CallError(f"{self.op.name}() misses {parameter.name!r}")
            values.append(kwargs.get(parameter.name, parameter.default))
        if len(values) > self._count or any(name not in self.signature.names[len(args) :] for name in kwargs):
            raise CallError(f"{self.op.name}() got an argument twice, or one that it has not")
        return values

    def _slow(self, *values: Any) -> Any:
        """A call without a cached entry, with wrong arguments, or one that torch takes part in."""
        regular = self.signature.normalise(values, {})
        tensors = tuple([regular[i] for i in self._tensor_positions])
        check_tensors(self.op, tensors)
        if is_transformed():
            return self.fallback.under_transform(regular)
        wants_gradients = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
        if wants_gradients or not no_torch_modes_active() or not are_plain_tensors(tensors):
            refuse_distributed(self.op, tensors)
            return self.torch_op(*regular)
        return self.run_values(*values)

    def _run(self, *values: Any) -> Any:
        """A call without a cached entry, on real tensors; raises `NoKernelMatches`."""
        regular = self.signature.normalise(values, {})
        tensors = tuple([regular[i] for i in self._tensor_positions])
        place = device_of_call(self.op, tensors)
        reasons = unsupported_reasons(self.op, regular)
        if reasons:
            raise NoKernelMatches(NoneApplies(reasons), regular)
        if isinstance(place, GpuProfile):
            plan = self._at(place).prepare(self._arguments(regular))
            if isinstance(plan, NoneApplies):
                raise NoKernelMatches(plan, regular)
            assert isinstance(plan, EmulatedPlan)
            return self._emulate_in_place(regular, tensors, lambda call: plain_call(plan, call))
        key = self._key(*values) if is_plain(self.op, values) else None
        entry = self._entries.find(key)
        if entry is None:
            return self._choose_and_run(place, regular, tensors, key)
        return entry(tensors, _addresses(tensors), tuple([regular[i] for i in self._number_positions]))

    def _choose_and_run(
        self, index: int, regular: tuple[Any, ...], tensors: tuple[Any, ...], key: tuple[Any, ...] | None
    ) -> Any:
        """Select a file and run it; cache the entry under `key` if there is one."""
        arguments = self._arguments(regular)
        ready = self._on(index).prepare(arguments)
        if isinstance(ready, NoneApplies):
            raise NoKernelMatches(ready, regular)
        specs = [arguments[self.signature.names[i]] for i in self._tensor_positions]
        requires_grad = any(tensor is not None and tensor.requires_grad for tensor in tensors)
        through_torch = lambda tensors, numbers: self.torch_op(*self._values(tensors, numbers))  # noqa: E731
        entry = make_entry(ready, self.op, specs, self._reselect, through_torch if requires_grad else None)
        if key is not None and ready.selected.index <= self._first_undecided:
            self._entries.add(key, entry)
        return entry(tensors, _addresses(tensors), tuple([regular[i] for i in self._number_positions]))

    def _reselect(self, tensors: tuple[Any, ...], numbers: tuple[Any, ...]) -> Any:
        """A call whose numbers make a `let` of the cached entry's file fail."""
        place = device_of_call(self.op, tensors)
        assert isinstance(place, int)  # only CUDA calls have entries
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
        """The arguments for the evaluator: a spec for each tensor."""
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

    # -- emulated calls --

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
        """Run on CPU tensors in the emulator and return results, findings and counts.

        `gpu` is the GPU to emulate (default: as for a plain call); `blocks` runs only that many sampled blocks of each
        launch; `schedules` beyond the first are random, by `seed`; `budget` is in thread instructions; `workers=0` uses
        all cores, which makes races nondeterministic. Raises what a call raises, except that findings are returned.
        """
        regular = self.signature.normalise(args, kwargs)
        tensors = tuple([regular[i] for i in self._tensor_positions])
        check_tensors(self.op, tensors)
        check_on_cpu(self.op, tensors)
        reasons = unsupported_reasons(self.op, regular)
        if reasons:
            raise self.fallback.error(NoneApplies(reasons))
        profile = emulated_profile() if gpu is None else named_profile(gpu)
        ready = self._at(profile).prepare(self._arguments(regular))
        if isinstance(ready, NoneApplies):
            raise self.fallback.error(ready)
        assert isinstance(ready, EmulatedPlan)
        emulation = Emulation(
            checks=tuple(Check(check) for check in checks),
            schedules=schedules,
            seed=seed,
            instruction_budget=budget,
            sampled_blocks=blocks,
            workers=workers,
        )
        outcome: EmulatedCall = self._emulate_in_place(
            regular, tensors, lambda call: full_call(ready, call, emulation, profile.name)
        )
        return outcome

    def _emulate_in_place(
        self, regular: tuple[Any, ...], tensors: tuple[Any, ...], run: Callable[[CallTensors], Any]
    ) -> Any:
        """Run with the same checks for tensors changed in place as on a GPU."""
        arguments = self._arguments(regular)
        specs = tuple(arguments[self.signature.names[i]] for i in self._tensor_positions)
        call = CallTensors(self.op, specs, tensors)
        entry = with_in_place_checks(lambda *_: run(call), self.op, specs)
        return entry(tensors, _addresses(tensors), ())


def _addresses(tensors: Sequence[torch.Tensor | None]) -> tuple[int, ...]:
    return tuple([0 if tensor is None else tensor.data_ptr() for tensor in tensors])


def _deciding(files: Sequence[KernelFile]) -> frozenset[str]:
    """The numbers that affect the selection of any file; raises `LoadError` where the op lines disagree."""
    try:  # independent of the profile
        return Dispatcher(files, PROFILES["H200"]).deciding
    except ValueError as error:
        raise LoadError(str(error)) from error
