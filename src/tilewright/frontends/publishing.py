"""`tilewright publish`: an export, or a run that is exported first, to the Hugging Face Hub."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from rich.text import Text

from tilewright.exports.errors import NotPublishable
from tilewright.exports.export import Target, export
from tilewright.exports.hub_project import HubChoices
from tilewright.exports.publish import Publication, check_publishable, checked_repository, publish
from tilewright.exports.writing import RECORD, read_record
from tilewright.frontends.choices import checked_licence
from tilewright.frontends.exporting import read_source
from tilewright.frontends.terminal import print_json, progress, stderr_console, stdout_console
from tilewright.records import UNSTATED


def publish_command(what: str, repository: str, dry_run: bool, private: bool, licence: str, as_json: bool) -> None:
    """Check, upload or not, and say what became of it."""
    checked_repository(repository)
    with tempfile.TemporaryDirectory() as temporary, progress() as say:
        folder = Path(what)
        if (folder / RECORD).is_file():
            _refuse_other_licence(folder, licence)
        else:
            folder = Path(temporary) / "export"
            source = read_source([what])
            source = replace(source, licence=checked_licence(licence)) if licence else source
            name = repository.rpartition("/")[2].replace("-", "_").replace(".", "_")
            export(source, Target.HUB, folder, name, (), say, HubChoices(repository=repository))
        done = check_publishable(folder, repository) if dry_run else publish(folder, repository, private, say)
    if as_json:
        print_json(done)
    else:
        _show(done)


def _refuse_other_licence(folder: Path, licence: str) -> None:
    """An export's files state its licence; one said here would be in none of them."""
    stated = str(read_record(folder).get("licence", UNSTATED)) if licence else ""
    if licence and checked_licence(licence) != stated:
        says = "say that nobody has stated one" if stated == UNSTATED else f"state {stated}"
        raise NotPublishable(
            f"--license {licence}: {folder} is an export, whose files {says}; export it again with --license {licence}"
        )


def _show(done: Publication) -> None:
    console = stdout_console()
    for path, size in done.files.items():
        console.print(Text(f"{size:>10}  {path}"))
    total = f"{len(done.files)} files, {done.bytes / 1e6:.1f} MB, of run {done.run}, licence {done.licence}"
    if done.uploaded:
        console.print(Text(f"published {done.address}: {total}"))
    else:
        console.print(Text(f"would go to {done.repository}: {total}"))
        stderr_console().print(Text("nothing was sent; leave --dry-run out to publish"))
