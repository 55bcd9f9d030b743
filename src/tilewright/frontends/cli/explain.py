"""`tilewright explain`: from arguments to a lesson on stdout, as Markdown with its pictures, or as one HTML file."""

from __future__ import annotations

import os
from pathlib import Path

from tilewright.frontends.cli.terminal import print_exactly, progress
from tilewright.frontends.report.lesson import lesson_of
from tilewright.frontends.report.rendering import markdown, pictures_folder, write_page
from tilewright.store import RunFolder, Store
from tilewright.tasks.errors import BadArgument

_MARKDOWN = (".md", ".markdown")
_ALSO = {".markdown": ".md", ".htm": ".html"}


def explain_run(name: str, output: Path | None) -> None:
    if output is not None:
        check_page(output)
    folder = Store().open_run(name)
    run = folder.load()
    if not run.attempts:
        raise BadArgument(f"run {run.id} has no finished attempt, so there is nothing to explain yet")
    with progress() as say:
        called, place = name_and_place(folder, name, output)
        lesson = lesson_of(folder, run, called, say, place)
    if output is None:
        print_exactly(markdown(lesson, None))
        return
    count = write_page(lesson, output)
    pictures = f" and {count} pictures in {pictures_folder(output)}" if count else ""
    print(f"wrote {output}{pictures}")


def name_and_place(folder: RunFolder, name: str, output: Path | None) -> tuple[str, str]:
    """How commands name the run, and where: a folder is found from beside the lesson, a name from anywhere."""
    if folder.path != Path(name):
        return folder.path.name, ""
    if folder.path.is_absolute():
        return name, ""
    if output is None:
        return name, f"in the folder {Path.cwd()}"
    return os.path.relpath(folder.path.resolve(), output.resolve().parent), "in the folder that this lesson is in"


def check_page(output: Path, endings: tuple[str, ...] = (".md", ".html"), option: str = "-o") -> None:
    """Refuse what cannot be written before anything is made."""
    ending = output.suffix.lower()
    if _ALSO.get(ending, ending) not in endings:
        raise BadArgument(f"{option} {output}: give a name that ends in {' or '.join(endings)}")
    if not output.resolve().parent.is_dir():
        raise BadArgument(f"{option} {output}: there is no folder {output.resolve().parent}")
    if output.is_dir():
        raise BadArgument(f"{option} {output}: a folder; give the name of a file")
    if output.suffix.lower() in _MARKDOWN and pictures_folder(output).exists() and not pictures_folder(output).is_dir():
        raise BadArgument(
            f"{option} {output}: its pictures go to {pictures_folder(output)}, which is a file; give another name"
        )
