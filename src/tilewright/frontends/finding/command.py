"""`tilewright find`: from arguments to a listing and, where it is asked, to kernels in the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tilewright.frontends.cli.terminal import print_json, progress, stderr_console, stdout_console
from tilewright.frontends.finding.finder import Searched, search
from tilewright.frontends.finding.finding import Finding
from tilewright.frontends.finding.listing import found_lines, found_svg, swap_lines
from tilewright.frontends.finding.report import FindReport, SwapReport
from tilewright.frontends.finding.subjects import Subject, subject
from tilewright.tasks.errors import BadArgument

_EVERY = "all"
_LARGEST_MODEL = 2 << 30  # bytes of weights that are made on a CPU only to compare outputs


@dataclass(frozen=True)
class FindOptions:
    shapes: dict[str, str]
    numbers: dict[str, str]
    gpu: str | None
    plot: Path | None
    as_json: bool
    make: tuple[str, ...] = ()  # regions by number or name, or all
    making: dict[str, Any] = field(default_factory=dict)  # the author and the budget


def find_in(model: str, options: FindOptions) -> None:
    """Run a model once and print what is worth a kernel; make kernels and try them in the model."""
    if options.plot is not None and not options.plot.resolve().parent.is_dir():
        raise BadArgument(f"--plot {options.plot}: there is no folder {options.plot.resolve().parent}; make it")
    with progress() as say:
        searched = _searched(model, options, say)
    if options.plot is not None:
        options.plot.write_text(found_svg(searched.found), encoding="utf-8")
    if not options.as_json:
        _print(found_lines(searched.found))
    report = _made(model, searched, options) if options.make else FindReport(searched.found)
    if options.as_json:
        print_json(report)


def _searched(model: str, options: FindOptions, say: Callable[[str], None]) -> Searched:
    device = "cuda" if torch.cuda.is_available() else "meta"
    say("making the model")
    made = subject(model, options.shapes, options.numbers, device)
    try:
        return search(made.model, (), made.inputs, options.gpu, say)
    except BadArgument:
        if device != "meta":
            raise
    say("making the model with content: it cannot be run without")
    made = subject(model, options.shapes, options.numbers, "cpu")
    return search(made.model, (), made.inputs, options.gpu, say)


def _made(model: str, searched: Searched, options: FindOptions) -> FindReport:
    found = Finding(searched, options.gpu)
    console = stderr_console()
    chosen = () if _EVERY in options.make else options.make
    found.make(*chosen, say=lambda text: console.print(text, markup=False), **options.making)
    kernels = {str(number): str(one.made.kernel) for number, one in found.kernels.items()}
    swapped = _tried(model, found, searched, options) if kernels else None
    if not options.as_json:
        _print(swap_lines(searched.found, kernels, swapped))
    return FindReport(searched.found, kernels, swapped)


def _tried(model: str, found: Finding, searched: Searched, options: FindOptions) -> SwapReport | None:
    """The kernels in the model, with weights: None where it is too large to be made here for that."""
    tried = Subject(searched.model, searched.kwargs)
    if any(one.is_meta for one in searched.model.parameters()):
        if sum(one.numel() * one.element_size() for one in searched.model.parameters()) > _LARGEST_MODEL:
            return None
        tried = subject(model, options.shapes, options.numbers, "cpu")
    with found.swap(tried.model, **tried.inputs) as swap:
        return swap.report


def _print(lines: list[str]) -> None:
    console = stdout_console()
    for line in lines:
        console.print(line, markup=False, highlight=False)
