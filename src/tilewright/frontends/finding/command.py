"""`tilewright find`: from arguments to a listing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from tilewright.frontends.finding.finder import Searched, search
from tilewright.frontends.finding.listing import found_lines, found_svg
from tilewright.frontends.finding.subjects import subject
from tilewright.frontends.kernel_arguments import BadArgument
from tilewright.frontends.terminal import print_json, progress, stdout_console


@dataclass(frozen=True)
class FindOptions:
    shapes: dict[str, str]
    numbers: dict[str, str]
    gpu: str | None
    plot: Path | None
    as_json: bool


def find_in(model: str, options: FindOptions) -> Searched:
    """Run a model once and print what is worth a kernel."""
    if options.plot is not None and not options.plot.resolve().parent.is_dir():
        raise BadArgument(f"--plot {options.plot}: there is no folder {options.plot.resolve().parent}; make it")
    device = "cuda" if torch.cuda.is_available() else "meta"
    with progress() as say:
        say("making the model")
        made = subject(model, options.shapes, options.numbers, device)
        try:
            searched = search(made.model, (), made.inputs, options.gpu, say)
        except BadArgument:
            if device != "meta":
                raise
            say("making the model with content: it cannot be run without")
            made = subject(model, options.shapes, options.numbers, "cpu")
            searched = search(made.model, (), made.inputs, options.gpu, say)
    if options.plot is not None:
        options.plot.write_text(found_svg(searched.found), encoding="utf-8")
    if options.as_json:
        print_json(searched.found)
    else:
        console = stdout_console()
        for line in found_lines(searched.found):
            console.print(line, markup=False, highlight=False)
    return searched
