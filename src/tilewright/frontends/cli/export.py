"""`tilewright export`: a run or kernel files, and what was asked for, into one call of `exports`."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.text import Text

from tilewright.exports.cuda_project import Exported, Target, export
from tilewright.exports.publish import Publication, check_publishable, checked_repository, publish
from tilewright.exports.source import Reference, Source, from_files, from_run, with_backward
from tilewright.exports.writing import RECORD, NotPublishable, read_record
from tilewright.frontends.api.choices import checked_licence
from tilewright.frontends.api.kernel_arguments import choose_profiles, complete_arguments, parse_arguments
from tilewright.frontends.cli.terminal import print_json, progress, stderr_console, stdout_console
from tilewright.kernel_file import DoesNotApply
from tilewright.records import PROFILES, UNSTATED
from tilewright.store import NoSuchRun, Store
from tilewright.tasks.errors import BadArgument


@dataclass(frozen=True)
class Wishes:
    """What a person may ask of an export, as it was written."""

    target: str
    output: Path
    name: str = ""
    archs: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    reference: tuple[Path, str] | None = None
    layer: str = ""
    licence: str = ""


def export_command(what: Sequence[str], wishes: Wishes, as_json: bool) -> None:
    """Write the export and say what became of it."""
    if wishes.target not in set(Target):
        raise BadArgument(f"--to {wishes.target}: write one of {', '.join(Target)}")
    if wishes.layer and wishes.target != Target.HUB:
        raise BadArgument("--layer is for --to hub")
    source = _as_wished(read_source(what), wishes)
    wanted = [profile.arch for profile in choose_profiles(wishes.archs, [])] if wishes.archs else []
    with progress() as say:
        done = export(
            source, Target(wishes.target), wishes.output, wishes.name, list(dict.fromkeys(wanted)), say,
            layer=wishes.layer,
        )  # fmt: skip
    if as_json:
        print_json(done)
    else:
        _show(done)


def _as_wished(source: Source, wishes: Wishes) -> Source:
    if wishes.reference is not None:
        path, function = wishes.reference
        source = replace(source, reference=Reference(path.read_text("utf-8"), function))
    if wishes.licence:
        source = replace(source, licence=checked_licence(wishes.licence))
    return _with_calls(source, wishes.shapes, wishes.numbers)


def read_source(what: Sequence[str]) -> Source:
    """A run by name or folder, or kernel files of one op."""
    paths = [Path(text) for text in what]
    if all(path.suffix == ".cu" for path in paths):
        missing = next((path for path in paths if not path.is_file()), None)
        if missing is not None:
            raise BadArgument(f"{missing}: no such file; give a run or a kernel file (.cu)")
        return with_backward(from_files(paths, Store()), Store())
    if len(what) > 1:
        raise BadArgument("give one run, or one or several kernel files (.cu) of one op")
    try:
        return with_backward(from_run(Store().open_run(what[0])), Store())
    except NoSuchRun as error:
        raise BadArgument(f"{error}; or give a kernel file (.cu)") from None


def _with_calls(source: Source, shapes: Sequence[str], numbers: Sequence[str]) -> Source:
    """The calls asked for by `--shape` before those of the task; guessed where there is neither."""
    if not shapes and not numbers and source.calls:
        return source
    file, gpu = source.files[0], PROFILES[source.gpu]
    given = parse_arguments(source.op, shapes, numbers)
    known = dict(source.calls[0]) if source.calls else {}
    try:
        call, guessed = complete_arguments(file, {**known, **given}, gpu)
    except DoesNotApply as error:
        raise BadArgument(str(error)) from None
    return replace(source, calls=(call, *source.calls), guessed=guessed)


def _show(done: Exported) -> None:
    console = stdout_console()
    sets = f"{done.sets} set{'s' if done.sets != 1 else ''} of constants for {', '.join(done.archs)}"
    console.print(Text(f"wrote {done.folder}: {done.files} files, {done.bytes / 1e6:.1f} MB, {sets}"))
    for note in done.notes:
        console.print(Text(f"note: {note}"))
    console.print(Text(f"see {Path(done.folder) / 'README.md'}"))


# -- `tilewright publish`: --


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
            export(source, Target.HUB, folder, name, (), say, repository=repository)
        done = check_publishable(folder, repository) if dry_run else publish(folder, repository, private, say)
    if as_json:
        print_json(done)
    else:
        _show_upload(done)


def _refuse_other_licence(folder: Path, licence: str) -> None:
    """An export's files state its licence; one said here would be in none of them."""
    stated = str(read_record(folder).get("licence", UNSTATED)) if licence else ""
    if licence and checked_licence(licence) != stated:
        says = "say that nobody has stated one" if stated == UNSTATED else f"state {stated}"
        raise NotPublishable(
            f"--license {licence}: {folder} is an export, whose files {says}; export it again with --license {licence}"
        )


def _show_upload(done: Publication) -> None:
    console = stdout_console()
    for path, size in done.files.items():
        console.print(Text(f"{size:>10}  {path}"))
    total = f"{len(done.files)} files, {done.bytes / 1e6:.1f} MB, of run {done.run}, licence {done.licence}"
    if done.uploaded:
        console.print(Text(f"published {done.address}: {total}"))
    else:
        console.print(Text(f"would go to {done.repository}: {total}"))
        stderr_console().print(Text("nothing was sent; leave --dry-run out to publish"))
