"""`tilewright explain`: from arguments to a lesson on stdout, as Markdown with its pictures, or as one HTML file."""

from __future__ import annotations

import os
from pathlib import Path

from tilewright.frontends.cli.terminal import print_exactly, progress
from tilewright.frontends.cli.view import encoded, static_files
from tilewright.frontends.report.document import Lesson, markdown
from tilewright.frontends.report.lesson import lesson_of
from tilewright.frontends.report.templating import render
from tilewright.store import RunFolder, Store, write_text
from tilewright.tasks.errors import BadArgument

_MARKDOWN, _HTML = (".md", ".markdown"), (".html", ".htm")
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
    pictures = f" and {count} pictures in {_pictures(output)}" if count else ""
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
    if output.suffix.lower() in _MARKDOWN and _pictures(output).exists() and not _pictures(output).is_dir():
        raise BadArgument(
            f"{option} {output}: its pictures go to {_pictures(output)}, which is a file; give another name"
        )


def _pictures(output: Path) -> Path:
    """The folder beside a Markdown file that holds its pictures."""
    return output.with_name(f"{output.stem}_pictures")


def write_page(lesson: Lesson, output: Path) -> int:
    """As the file's name says. Returns how many files there are beside it."""
    if output.suffix.lower() in _HTML:
        output.write_bytes(encoded(lesson_page(lesson)))
        return 0
    place = _pictures(output)
    if lesson.pictures:
        place.mkdir(exist_ok=True)
    for one in lesson.pictures:
        write_text(place / f"{one.name}.svg", one.svg)
    write_text(output, markdown(lesson, f"{place.name}/"))
    return len(lesson.pictures)


def lesson_page(lesson: Lesson) -> str:
    """One HTML file that needs nothing beside it."""
    return render("lesson_file", lesson=lesson, styles=static_files()["style.css"].decode())
