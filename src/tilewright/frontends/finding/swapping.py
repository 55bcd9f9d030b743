"""Kernels in the places of a model's regions, and back.

A module's `forward` is replaced on the instance, bound to it: its parameters, its place in the state dict, hooks, mode
and copies stay its own. One that somebody else gave a `forward` of its own is left alone. A function is replaced where
its module finds it, so for every model in the process. A call that the kernel was not made for runs what stood there
before.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from tilewright.frontends.api.objects import ArgumentMap, BoundKernel, Original
from tilewright.frontends.finding.chain_text import Replacement, frame_function
from tilewright.frontends.finding.frames import Leaves, trace_frame
from tilewright.frontends.finding.kernels import RegionKernel, data_inputs
from tilewright.frontends.finding.opinions import input_names
from tilewright.frontends.finding.regions import FrameChain, Region
from tilewright.frontends.finding.report import RegionKind
from tilewright.tasks.lifting.module_source import module_source
from tilewright.tasks.lifting.source_text import undecorated

Undo = Callable[[], None]

_OURS = ("forward", "__reduce_ex__")  # attributes that an instance has while it is swapped


def swap_region(kernel: RegionKernel, model: torch.nn.Module) -> list[Undo]:
    """Put a kernel in all the places of its region in a model; how to take each out again."""
    region = kernel.region
    if region.kind is RegionKind.FUNCTION:
        return _swap_function(kernel)
    paths = dict.fromkeys(call.path for call in region.calls)
    modules = [model.get_submodule(path) for path in paths]
    if region.kind is RegionKind.MODULE:
        return _swap_modules(kernel, modules)
    return _swap_frames(kernel, modules)


def _set_forward(module: torch.nn.Module, forward: Callable[..., Any]) -> Undo:
    before = {name: value for name, value in vars(module).items() if name in _OURS}
    _bind(module, forward)

    def undo() -> None:
        for name in _OURS:
            vars(module).pop(name, None)
        vars(module).update(before)

    return undo


def _bind(module: torch.nn.Module, forward: Callable[..., Any]) -> None:
    """A method on an instance is an attribute like any other: a shallow copy would have that of the first."""
    vars(module)["forward"] = types.MethodType(forward, module)
    kind: Any = type(module)
    if kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__:
        vars(module)["__reduce_ex__"] = lambda protocol: _as_copied(module, forward)


def _as_copied(module: torch.nn.Module, forward: Callable[..., Any]) -> tuple[Any, ...]:
    """What `copy` makes a copy of: all but the binding, which a copy gets for itself."""
    state = {name: value for name, value in vars(module).items() if name not in _OURS}
    return _bound_anew, (type(module), forward), state


def _bound_anew(kind: type[torch.nn.Module], forward: Callable[..., Any]) -> torch.nn.Module:
    module = kind.__new__(kind)
    _bind(module, forward)
    return module


# -- rows --


def by_rows(kernel: Callable[..., Any], places: tuple[int, ...]) -> Callable[..., Any]:
    """A kernel for rows as one for any dimensions before the last of its arguments at these places."""

    def call(*values: Any) -> Any:
        leading = values[places[0]].shape[:-1]
        if any(values[place].shape[:-1] != leading for place in places):
            return kernel(*values)  # which broadcasts or refuses as the function does: no file takes it
        flat = [one.reshape(-1, one.shape[-1]) if place in places else one for place, one in enumerate(values)]
        made = kernel(*flat)
        if isinstance(made, torch.Tensor):
            return made.reshape(*leading, made.shape[-1])
        return tuple(one.reshape(*leading, one.shape[-1]) for one in made)

    return call


def _called(kernel: RegionKernel) -> Callable[..., Any]:
    """The kernel as a function of its inputs in the order of its op."""
    plain, data = kernel.plain, data_inputs(kernel.region)
    if not kernel.by_rows:
        return plain
    own = {one: name for name, one in input_names(kernel.region).items()}
    return by_rows(plain, tuple(place for place, one in enumerate(plain.task.inputs) if own.get(one.name) in data))


# -- whole modules --


def _swap_modules(kernel: RegionKernel, modules: list[torch.nn.Module]) -> list[Undo]:
    assert isinstance(kernel.made, BoundKernel)
    original = kernel.made.original
    text = module_source(kernel.region.owner)
    wiring = ArgumentMap(kernel.made.task, original)
    run = _called(kernel)
    undone = []
    for module in modules:
        if "forward" not in vars(module) and module_source(module).source == text.source:  # it holds the same numbers
            undone.append(_set_forward(module, _module_forward(wiring, run)))
    return undone


def _module_forward(wiring: ArgumentMap, run: Callable[..., Any]) -> Callable[..., Any]:
    def forward(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        reason, values = wiring.values(self, args, kwargs)
        if reason:
            return type(self).forward(self, *args, **kwargs)
        return run(*values)

    return forward


# -- chains --


def _swap_frames(kernel: RegionKernel, modules: list[torch.nn.Module]) -> list[Undo]:
    chain = kernel.region.chain
    assert chain is not None
    new = Replacement(chain.chain, chain.text, _called(kernel))
    functions = [one.target for one in chain.frame.graph.nodes if isinstance(one.target, types.FunctionType)]
    undone = []
    for module in modules:
        present = getattr(vars(module).get("forward"), "__func__", None)
        known = present if isinstance(present, _FrameForward) and present.chain.frame is chain.frame else None
        if known is None and "forward" in vars(module):
            continue
        replacements = (*(known.replacements if known else ()), new)  # other chains of the frame stay replaced
        body = frame_function(chain.frame, replacements)
        frame = trace_frame(module, chain.leaves, functions)
        if body is not None and frame is not None and frame.code == chain.frame.code:
            undone.append(_set_forward(module, _FrameForward(chain, replacements, body, module.training)))
    return undone


class _FrameForward:
    """A frame's body with kernels in it, as a method. `training`: the mode in which the frame was followed."""

    def __init__(
        self, chain: FrameChain, replacements: tuple[Replacement, ...], body: Callable[..., Any], training: bool
    ) -> None:
        self.chain = chain
        self.replacements = replacements
        self._body = body
        self._training = training

    def __call__(self, module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        found, values = Leaves.of(args, kwargs)
        if module.training is not self._training or found != self.chain.leaves:
            return type(module).forward(module, *args, **kwargs)
        return self._body(module, *values)

    def __deepcopy__(self, memo: object) -> _FrameForward:
        """Itself: nothing of it changes, and nothing of it is the module's."""
        return self


# -- functions --


def _swap_function(kernel: RegionKernel) -> list[Undo]:
    function = kernel.region.owner
    original = Original(function, tuple(inspect.signature(function).parameters.values()))
    wiring = ArgumentMap(kernel.plain.task, original)

    def swapped(*args: Any, **kwargs: Any) -> Any:
        reason, values = wiring.values(None, args, kwargs)
        return function(*args, **kwargs) if reason else kernel.plain(*values)

    swapped.__name__, swapped.__wrapped__ = function.__name__, function  # type: ignore[attr-defined]
    package = function.__module__.partition(".")[0]
    undone = []
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == package and isinstance(module, types.ModuleType):
            for own, value in list(vars(module).items()):
                if value is function or (isinstance(value, torch.nn.Module) and undecorated(value) is function):
                    undone.append(_set_name(module, own, value, swapped))
    return undone


def _set_name(module: types.ModuleType, name: str, before: Any, value: Any) -> Undo:
    setattr(module, name, value)
    return lambda: setattr(module, name, before)


def places_of(region: Region) -> int:
    """In how many places a region's kernel is wanted."""
    if region.kind is RegionKind.FUNCTION:
        return 1
    return len({call.path for call in region.calls})
