"""`tilewright export` and `publish`: a run or kernel files as a package, a Hub project or CUDA sources; the upload."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from tilewright.exports import cuda_project
from tilewright.exports import publish as publishing
from tilewright.exports.cuda_project import Target
from tilewright.exports.publish import check_publishable, checked_repository
from tilewright.exports.source import Reference, Source, from_files, from_run, with_backward
from tilewright.exports.writing import RECORD, NotPublishable, read_record
from tilewright.frontends.api.choices import checked_licence
from tilewright.frontends.api.kernel_arguments import choose_profiles, complete_arguments, parse_arguments
from tilewright.frontends.cli import terminal
from tilewright.frontends.cli.terminal import deliver, progress, reference_of, stderr_console
from tilewright.frontends.report.document import say_each
from tilewright.frontends.report.runs import number_of
from tilewright.records import PROFILES, UNSTATED
from tilewright.store import NoSuchRun, Store
from tilewright.tasks.errors import BadArgument


def export(
    what: Annotated[
        list[str],
        typer.Argument(help="A run, or one or several kernel files of one op.", metavar="RUN|K.cu", show_default=False),
    ],
    to: Annotated[str, typer.Option("--to", help="What to write.", metavar="torch|hub|cuda", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write.", show_default=False)],
    name: Annotated[str, typer.Option(metavar="NAME", help="Name of the package; the op's where it is left out.")] = "",
    arch: terminal.ArchesOption = None,
    shape: terminal.ShapeOption = None,
    set_: terminal.SetOption = None,
    reference: terminal.ReferenceOption = None,
    layer: Annotated[
        str,
        typer.Option(metavar="NAME", help="Of a Hub project: the layer that the op is, where it is not recognised."),
    ] = "",
    licence: terminal.LicenceOption = "",
    as_json: terminal.JsonOption = False,
) -> None:
    """Write a finished kernel as a torch package, a project for the Hugging Face Hub, or plain CUDA sources."""
    if to not in set(Target):
        raise BadArgument(f"--to {to}: write one of {', '.join(Target)}")
    if layer and to != Target.HUB:
        raise BadArgument("--layer is for --to hub")
    source = _with_calls(read_source(what), shape or (), set_ or ())
    with reference_of(reference, dict(source.calls[0])) as known:
        if known is not None:
            source = replace(source, reference=Reference(known[0].read_text("utf-8"), known[1]))
    source = replace(source, licence=checked_licence(licence)) if licence else source
    archs = list(dict.fromkeys(profile.arch for profile in choose_profiles(arch, []))) if arch else []
    with progress() as say:
        done = cuda_project.export(source, Target(to), output, name, archs, say, layer=layer)
    sets = f"{number_of(done.sets, 'set')} of constants for {', '.join(done.archs)}"
    lines = [f"wrote {done.folder}: {done.files} files, {done.bytes / 1e6:.1f} MB, {sets}"]
    lines += [*(f"note: {note}" for note in done.notes), f"see {Path(done.folder) / 'README.md'}"]
    deliver(done, as_json, say_each(lines))


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
    call, guessed = complete_arguments(file, {**known, **given}, gpu)
    return replace(source, calls=(call, *source.calls), guessed=guessed)


def publish(
    what: Annotated[str, typer.Argument(help="An export --to hub, or a run.", metavar="DIR|RUN", show_default=False)],
    to: Annotated[str, typer.Option("--to", metavar="USER/NAME", help="Repository on the Hub.", show_default=False)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be uploaded; send nothing.")] = False,
    private: Annotated[bool, typer.Option("--private", help="Make the repository a private one.")] = False,
    licence: terminal.LicenceOption = "",
    as_json: terminal.JsonOption = False,
) -> None:
    """Upload an exported kernel to the Hugging Face Hub; a kernel that was not verified is refused."""
    checked_repository(to)
    with tempfile.TemporaryDirectory() as temporary, progress() as say:
        folder = Path(what)
        if (folder / RECORD).is_file():
            stated = str(read_record(folder).get("licence", UNSTATED)) if licence else ""
            if licence and checked_licence(licence) != stated:  # which would be in none of its files
                says = "say that nobody has stated one" if stated == UNSTATED else f"state {stated}"
                raise NotPublishable(
                    f"--license {licence}: {folder} is an export, whose files {says}; export it again with "
                    f"--license {licence}"
                )
        else:
            folder = Path(temporary) / "export"
            source = read_source([what])
            source = replace(source, licence=checked_licence(licence)) if licence else source
            name = to.rpartition("/")[2].replace("-", "_").replace(".", "_")
            cuda_project.export(source, Target.HUB, folder, name, (), say, repository=to)
        done = check_publishable(folder, to) if dry_run else publishing.publish(folder, to, private, say)
    lines = [f"{size:>10}  {path}" for path, size in done.files.items()]
    place = f"published {done.address}" if done.uploaded else f"would go to {done.repository}"
    total = f"{len(done.files)} files, {done.bytes / 1e6:.1f} MB, of run {done.run}, licence {done.licence}"
    deliver(done, as_json, say_each([*lines, f"{place}: {total}"]))
    if not as_json and not done.uploaded:
        stderr_console().print("nothing was sent; leave --dry-run out to publish")
