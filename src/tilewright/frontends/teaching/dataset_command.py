"""`tilewright dataset`: runs into records to train on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from tilewright.frontends.choices import checked_licence
from tilewright.frontends.kernel_arguments import BadArgument
from tilewright.frontends.teaching.chosen_runs import chosen_runs, run_cleaner
from tilewright.frontends.terminal import print_json, stdout_console
from tilewright.records import UNSTATED
from tilewright.teaching.dataset import NoParquet, samples_of, write_jsonl, write_parquet

_WRITERS = {".jsonl": write_jsonl, ".parquet": write_parquet}


@dataclass(frozen=True)
class Written:
    """What was written."""

    file: str
    runs: int
    records: int
    passed: int
    licences: dict[str, int]


def dataset_command(runs: Sequence[str], output: Path, licence: str, passed_only: bool, as_json: bool) -> None:
    """Write the file and say what is in it."""
    write = _WRITERS.get(output.suffix)
    if write is None:
        raise BadArgument(f"-o {output}: write a file that ends in {' or '.join(_WRITERS)}")
    if output.is_dir() or not output.resolve().parent.is_dir():
        raise BadArgument(f"-o {output}: there is no folder for such a file; name a file in one that is there")
    folders = chosen_runs(runs)
    samples = samples_of(folders, run_cleaner(folders), checked_licence(licence), passed_only)
    if not samples:
        raise BadArgument(
            f"{', '.join(runs)}: there is nothing to write: no such run has a reply or a kernel that passed"
        )
    try:
        write(output, samples)
    except NoParquet as error:
        raise BadArgument(str(error)) from None
    licences = dict(Counter(one.licence for one in samples))
    written = Written(str(output), len(folders), len(samples), sum(one.passed for one in samples), licences)
    print_json(written) if as_json else _show(written)


def _show(written: Written) -> None:
    console = stdout_console()
    counts = f"{written.records} records of {written.runs} runs, {written.passed} of them right"
    console.print(Text(f"wrote {written.file}: {counts}"))
    if unstated := written.licences.get(UNSTATED):
        console.print(Text(f"note: nobody has stated a licence for {unstated} of them; state one with --license SPDX"))
