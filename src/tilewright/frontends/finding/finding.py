"""`tilewright.find`: what is worth a kernel in a model, kernels for it, and a model with them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from tilewright.frontends.api.choices import PLAYBOOK, author_name
from tilewright.frontends.api.make import NoKernelMade
from tilewright.frontends.finding.checking import Agreement, Judge, call_time_us
from tilewright.frontends.finding.finder import Searched, search
from tilewright.frontends.finding.kernels import RegionKernel, make_kernel
from tilewright.frontends.finding.listing import found_lines
from tilewright.frontends.finding.report import FoundModel, FoundRegion, SwapReport
from tilewright.frontends.finding.swapping import Undo, places_of, swap_region
from tilewright.tasks import RefusedRequest
from tilewright.tasks.errors import BadArgument


def find(model: torch.nn.Module, *args: Any, gpu: str | None = None, **kwargs: Any) -> Finding:
    """Run a model once with example inputs, and list the regions that are worth a kernel.

    On a GPU times are measured; elsewhere they are modelled, and a model on the meta device takes no memory.
    `print(found)` lists; `found.make()` makes kernels; `found.swap()` puts them into the model, checked by its outputs.
    """
    if not isinstance(model, torch.nn.Module):
        raise BadArgument(f"find takes an nn.Module and example inputs, not a {type(model).__name__}")
    return Finding(search(model, args, kwargs, gpu), gpu)


class Finding:
    """What was found, and the kernels that were made for it."""

    def __init__(self, searched: Searched, gpu: str | None = None) -> None:
        self._searched = searched
        self._gpu = gpu
        self.found: FoundModel = searched.found
        self.kernels: dict[int, RegionKernel] = {}  # by the number of the region

    def make(self, *chosen: int | str, say: Callable[[str], object] = str, **options: Any) -> Finding:
        """Make kernels for regions by number or name; for all that the author can do where none is named.

        `options` are those of `make`: who writes, with what budget, `backward=True` for a model that is trained.
        Kernels made before are found, free.
        """
        options.setdefault("gpu", self._gpu)
        writer = author_name(options.get("model"), options.get("author"), os.environ)
        for number, entry in self._chosen(chosen):
            if entry.why and writer == PLAYBOOK and not chosen:
                say(f"region {number}, {entry.title}, is left as it is: {entry.why}")
                continue
            say(f"region {number}: {entry.title}")
            try:
                self.kernels[number] = make_kernel(self._searched.regions[number - 1], **options)
            except (RefusedRequest, BadArgument, NoKernelMade) as refusal:
                if chosen:
                    raise
                say(f"region {number}, {entry.title}, is left as it is: {refusal}")
                continue
            if options.get("backward") and self.kernels[number].plain.backward is None:
                say(f"region {number} has no kernel for its gradients: in training its reference is run again for them")
        return self

    def _chosen(self, chosen: tuple[int | str, ...]) -> list[tuple[int, FoundRegion]]:
        known = {one.number: one for one in self.found.regions}
        if not chosen:
            return list(known.items())
        found: list[tuple[int, FoundRegion]] = []
        for wanted in chosen:
            same = [(number, one) for number, one in known.items() if str(wanted) in (str(number), one.name)]
            if not same:
                listed = ", ".join(f"{one.number} {one.name}" for one in known.values()) or "none"
                raise BadArgument(f"no region is called {wanted}; there are {listed}")
            found += same
        return found

    def swap(self, model: torch.nn.Module | None = None, *args: Any, **kwargs: Any) -> Swap:
        """Put the kernels into the model that was searched, or into one like it, called with `args` to be checked.

        Region by region: one whose kernel makes the model's outputs differ by more than rounding is put back.
        """
        if model is None:
            model, args, kwargs = self._searched.model, self._searched.args, self._searched.kwargs
        if not self.kernels:
            raise BadArgument("no kernel has been made yet; call make() first")
        if any(one.is_meta for one in model.parameters()):
            raise BadArgument("a model on the meta device has no weights to run with; swap into one that has")
        return Swap(model, args, kwargs, self.kernels)

    def __str__(self) -> str:
        return "\n".join(found_lines(self.found))


class Swap:
    """Kernels in a model. `replaced` counts the places of each region, `refused` says why others were put back.

    `undo` takes them out again, as does leaving a `with` block. On a GPU a call was timed before and after.
    """

    def __init__(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], kernels: dict[int, RegionKernel]
    ) -> None:
        self.model = model
        self.before_us = call_time_us(model, args, kwargs)
        self.replaced: dict[str, int] = {}
        self.refused: dict[str, str] = {}
        self._undo: list[Undo] = []
        judge = Judge(model, args, kwargs)
        self.agreement: Agreement = judge.agreement()
        for kernel in kernels.values():
            self._swap(kernel, judge)
        self.after_us = call_time_us(model, args, kwargs)

    def _swap(self, kernel: RegionKernel, judge: Judge) -> None:
        title = kernel.region.title
        undone = swap_region(kernel, self.model)
        agreement = judge.agreement() if undone else None
        if agreement is not None and agreement.is_honest:
            self._undo += undone
            self.replaced[title] = self.replaced.get(title, 0) + len(undone)
            self.agreement = agreement
            missed = places_of(kernel.region) - len(undone)
            if kernel.region.kind.value != "function" and missed:
                self.refused[f"{title}, {missed} places"] = "other numbers, or a forward of their own, are held there"
            return
        for one in reversed(undone):
            one()
        self.refused[title] = agreement.words if agreement is not None else "the model has no place like it"

    def undo(self) -> None:
        """The model as it was."""
        while self._undo:
            self._undo.pop()()
        self.replaced.clear()

    def __enter__(self) -> Swap:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    @property
    def report(self) -> SwapReport:
        return SwapReport(dict(self.replaced), dict(self.refused), self.agreement.words, self.before_us, self.after_us)

    def __repr__(self) -> str:
        listed = ", ".join(f"{title} in {count} places" for title, count in self.replaced.items()) or "nothing"
        return f"<Swap: {listed}; {self.agreement.words}>"
