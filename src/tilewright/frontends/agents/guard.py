"""Checks of an agent's arguments: lengths, names, paths, and Python source. A refusal is one sentence.

What source does is not judged by its text: it runs behind a boundary of the kernel (`child.boundary`), and is refused
where there is none.
"""

from __future__ import annotations

import ast
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tilewright.child.boundary import OFF, VARIABLE, Strength, strength, strength_words
from tilewright.records import Precision
from tilewright.reference.loading import searched_folders
from tilewright.store import NoSuchRun, Request, RunFolder, Store

MOST_KERNEL_CHARACTERS = 200_000
MOST_SOURCE_CHARACTERS = 60_000
MOST_WORDS_CHARACTERS = 4_000
MOST_SUMMARY_CHARACTERS = 1_000
MOST_ENTRIES = 64
MOST_ATTEMPTS = 100
_MOST_ENTRY_CHARACTERS = 200

_RUN_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_LONGEST_RUN_ID = 80
_NAME_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")

T = TypeVar("T")


class Refused(ValueError):
    """A refused call of a tool: one sentence that says what is wrong and what to do."""


def checked_text(name: str, text: str, most: int) -> str:
    if len(text) > most:
        raise Refused(f"{name} has {len(text):,} characters, and may have {most:,}; send less")
    if "\0" in text:
        raise Refused(f"{name} holds a NUL character; send plain text")
    return text


def checked_entries(name: str, entries: dict[str, str]) -> dict[str, str]:
    """Texts by parameter, such as shapes."""
    if len(entries) > MOST_ENTRIES:
        raise Refused(f"{name} has {len(entries)} entries, and may have {MOST_ENTRIES}")
    for key, value in entries.items():
        if not key.isidentifier():
            raise Refused(f"{name}: {key[:40]!r} is no name of a parameter")
        checked_text(f"{name} of {key}", value, _MOST_ENTRY_CHARACTERS)
    return entries


def checked_words(words: str) -> str:
    """Words that cannot be taken for a path, which would be opened."""
    words = checked_text("words", words, MOST_WORDS_CHARACTERS).strip()
    if not words:
        raise Refused("words are empty; say what is to be computed")
    reads_as_path = ".py" in words or words[0] in "/~." or " " not in words or os.path.exists(words)
    if reads_as_path and not words.isalpha():
        raise Refused("words look like a path, and files are not read here; give words, or Python text as source")
    return words


def open_run(store: Store, name: str) -> RunFolder:
    """The run of exactly that name: no path, and no prefix, which might match another run later."""
    if len(name) > _LONGEST_RUN_ID or not _RUN_ID.fullmatch(name):
        raise Refused(f"{name[:60]!r} is no name of a run; history lists the names")
    try:
        folder = store.open_run(name)
    except NoSuchRun:
        folder = None
    if folder is None or folder.path.parent != store.home / "runs" or folder.path.name != name:
        raise Refused(f"no run is called {name!r}; history lists the names")
    return folder


def path_below(root: Path, name: str) -> Path:
    """A path below `root` that does not exist yet; raises `Refused` for any other."""
    parts = name.split("/")
    if len(name) > _MOST_ENTRY_CHARACTERS or not all(_NAME_PART.fullmatch(part) for part in parts):
        raise Refused(
            f"{name[:60]!r} is no path to write to; give names of letters, digits, '.', '_' and '-' joined by '/', "
            "relative to the folder the server was started for"
        )
    path = root.joinpath(*parts)
    if not path.resolve().is_relative_to(root.resolve()):
        raise Refused(f"{name!r} leads out of the folder the server was started for; give another name")
    if path.exists() or path.is_symlink():
        raise Refused(f"{name!r} is there already; give another name")
    return path


# -- Python source --


@dataclass(frozen=True)
class SourceTarget:
    """A function of a source, or a class and the expression that makes a module of it."""

    name: str
    module: str = ""


def source_target(source: str, wanted: str) -> SourceTarget:
    """The function or class that `wanted` names in a checked source, with arguments or not: `Norm(256, eps=1e-5)`."""
    checked_text("function", wanted, _MOST_ENTRY_CHARACTERS)
    try:
        node = ast.parse(wanted.strip(), mode="eval").body
        call = node if isinstance(node, ast.Call) else None
        name = call.func if call else node
        for given in (*call.args, *(one.value for one in call.keywords)) if call else ():
            ast.literal_eval(given)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        name = None
    if not isinstance(name, ast.Name):
        raise Refused(
            "function names nothing; give the name of a function that source defines or, of an nn.Module, its class "
            "with plain numbers and texts as arguments, such as Norm(256, eps=1e-5)"
        )
    kinds = {one.name: type(one) for one in ast.parse(source).body if isinstance(one, (ast.FunctionDef, ast.ClassDef))}
    kind = kinds.get(name.id)
    if kind is None or (call is not None and kind is not ast.ClassDef):
        what = "class" if call is not None else "function or class"
        raise Refused(f"source defines no {what} {name.id!r} at its top level; it defines {', '.join(kinds) or 'none'}")
    return SourceTarget(name.id, "" if kind is ast.FunctionDef else ast.unparse(call) if call else f"{name.id}()")


def checked_source(source: str) -> str:
    """Source that may run as a reference: inside the boundary, which keeps it from files, processes and the network."""
    found = strength()
    if found is not Strength.FULL and os.environ.get(VARIABLE) != OFF:
        raise Refused(
            f"source is not run here, since nothing would keep it from this machine's files ({strength_words()}); give "
            f"words, or have the server started with {VARIABLE}={OFF} if its sources are trusted"
        )
    checked_text("source", source, MOST_SOURCE_CHARACTERS)
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f" at line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise Refused(f"source is not Python{line}; send the whole text of a PyTorch function") from None
    for folder in searched_folders(source):
        raise Refused(
            f"source reads modules from {folder[:80]!r}, and no files are read here; send one text that needs none"
        )
    return source


# -- what a tool is asked to do --


def checked_request(words: str, source: str, function: str, precision: str) -> Request:
    if bool(words.strip()) == bool(source.strip()):
        raise Refused("give either words or source with function: one of the two says what is to be computed")
    if source.strip():
        text = checked_source(source)
        target = source_target(text, function)
        return Request(text, function=target.name, module=target.module, precision=_checked_precision(precision))
    if function:
        raise Refused("function goes with source; words need none")
    return Request(checked_words(words), precision=_checked_precision(precision))


def _checked_precision(text: str) -> Precision | None:
    try:
        return Precision(text) if text else None
    except ValueError:
        known = ", ".join(one.value for one in Precision)
        raise Refused(f"precision {text[:40]!r} is not known; write one of {known}") from None


def checked_count(name: str, number: int) -> int:
    if not 1 <= number <= MOST_ATTEMPTS:
        raise Refused(f"{name} is {number}; give 1 to {MOST_ATTEMPTS}")
    return number


def reply_text(kernel: str, edits: str, summary: str) -> str:
    """What a model would reply."""
    if bool(kernel.strip()) == bool(edits.strip()):
        raise Refused("give either kernel, the whole file, or edits of the file that the question shows")
    for name, text in (("kernel", kernel), ("edits", edits)):
        checked_text(name, text, MOST_KERNEL_CHARACTERS)
    line = " ".join(checked_text("summary", summary, MOST_SUMMARY_CHARACTERS).split())
    head = f"Summary: {line or 'no summary given'}\n\n"
    if edits.strip():
        return head + edits.strip("\n") + "\n"
    if kernel.lstrip().startswith("```"):  # fenced already, as a model would send it
        return head + kernel.strip() + "\n"
    return f"{head}```cuda\n{kernel.strip()}\n```\n"


# -- answers --


class Redactor:
    """Replaces paths of this machine in texts and JSON values: of the runs, the root, the package, the user's home."""

    def __init__(self, root: Path, home: Path) -> None:
        package = Path(__file__).resolve().parents[3]
        places = {str(root.resolve()): "ROOT", str(root): "ROOT", str(home): "HOME", str(home.resolve()): "HOME"}
        places |= {str(package): "PACKAGE", os.path.expanduser("~"): "~"}
        self._places = sorted(
            ((place, name) for place, name in places.items() if len(place) > 1), key=lambda one: -len(one[0])
        )

    def __call__(self, value: T) -> T:
        made: Any = value
        if isinstance(value, str):
            for place, name in self._places:
                made = made.replace(place, name)
        elif isinstance(value, dict):
            made = {key: self(one) for key, one in value.items()}
        elif isinstance(value, list):
            made = [self(one) for one in value]
        redacted: T = made
        return redacted
