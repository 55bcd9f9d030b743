"""What a text includes written out in its place, as far as it can be found."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_INCLUDE = re.compile(r'[ \t]*#[ \t]*include[ \t]*(?:"(?P<quoted>[^"\n]+)"|<(?P<angled>[^>\n]+)>)')
_DIRECTIVE = re.compile(r"[ \t]*#[ \t]*(ifdef|ifndef|if|elif|else|endif|define|undef)\b[ \t]*(\w*)")
_STAND_INS = ("ATen/", "torch/", "c10/", "cuda", "pybind11/")  # what the recording runtime is there for


class Includes:
    """Reads one translation unit: each header once, and none where a condition plainly leaves it out."""

    def __init__(self, include: Sequence[Path], defines: Sequence[str]) -> None:
        self.include = [(one, one.resolve()) for one in include]
        self.defined = {one.partition("=")[0] for one in defines}
        self.seen: set[Path] = set()
        self.missing: list[str] = []
        self._branches: list[bool | None] = []  # of the conditions around: taken, left out, or who knows

    def lines(self, name: str, text: str, folder: Path | None) -> list[tuple[str, tuple[str, int]]]:
        """Each line, and the file and line that it comes from."""
        made = []
        for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
            self._directive(line)
            wanted = _INCLUDE.match(line)
            path = self._found(wanted, folder) if wanted and folder and False not in self._branches else None
            if path is None:
                made.append((line, (name, number)))
            elif path not in self.seen:
                self.seen.add(path)
                made += self.lines(path.name, path.read_text("utf-8", "replace"), path.parent)
        return made

    def _directive(self, line: str) -> None:
        """Follows the conditions on single names; of names that compilers define nothing is known."""
        found = _DIRECTIVE.match(line)
        if found is None:
            return
        word, name = found.groups()
        if word in ("ifdef", "ifndef"):
            is_known = name in self.defined or not name.startswith("_")
            self._branches.append((name in self.defined) is (word == "ifdef") if is_known else None)
        elif word == "if":
            self._branches.append(None)
        elif word in ("else", "elif") and self._branches:
            taken = self._branches[-1]
            self._branches[-1] = None if taken is None or (word == "elif" and not taken) else not taken
        elif word == "endif" and self._branches:
            self._branches.pop()
        elif word == "define" and False not in self._branches:
            self.defined.add(name)
        elif word == "undef":
            self.defined.discard(name)

    def _found(self, wanted: re.Match[str], folder: Path) -> Path | None:
        # Only what lies beside the file, or where one was told to look, is anybody's to read.
        beside = [(folder, folder.resolve().parent)] if wanted["quoted"] else []
        name = wanted["quoted"] or wanted["angled"]
        places = (*beside, *self.include)
        for place, _ in places:
            path = (place / name).resolve()
            if any(path.is_relative_to(root) for _, root in places) and path.is_file():
                return path
        self.missing += [name] if wanted["quoted"] and not name.startswith(_STAND_INS) else []
        return None
