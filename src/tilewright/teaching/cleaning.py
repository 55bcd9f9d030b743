"""What leaves this machine says nothing of it: absolute paths become file names, and what looks like a key goes.

Only paths below a folder that lies at the root of a file system are taken for paths, so `a /rows/columns` stays.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

Clean = Callable[[str], str]

HIDDEN_PATH, HIDDEN_KEY = "PATH", "KEY"
_ROOTS = ("home", "Users", "root", "tmp", "var", "opt", "usr", "mnt", "media", "srv", "data", "scratch", "workspace")
_IN_A_PATH = r"[^\s\"'`<>|;,()\[\]{}*?\\:]"
_KEYS = re.compile(
    r"\b(?:sk-[\w-]{16,}|hf_\w{16,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|AKIA[0-9A-Z]{16}|xox[abp]-[\w-]{10,}|"
    r"eyJ[\w-]{16,}\.[\w-]{16,}\.[\w-]+)"
)


def cleaner(secrets: Iterable[str] = (), folders: Iterable[Path] = ()) -> Clean:
    """A function from a text to the same without paths of this machine, and without `secrets`.

    `folders` are hidden to the letter, blanks in their names included; so are those of the person and of the process.
    """
    here = (Path.home(), Path.cwd(), Path(tempfile.gettempdir()), *folders)
    named = sorted({str(one.resolve()) for one in here} | {str(one) for one in here}, key=len, reverse=True)
    exact = [re.escape(one) for one in named if one.count("/") > 1 and one.startswith("/")]
    roots = "|".join(sorted({re.escape(one) for one in (*_ROOTS, *os.listdir("/"))}, key=len, reverse=True))
    general = rf"/(?:{roots})(?=/)"
    path = re.compile(
        rf"(?:(?<![\w.~/)\]}}])|(?<=-[ILo]))(?:file://)?(?:{'|'.join((*exact, general))})(?!\w)(?:/{_IN_A_PATH}*)*"
    )
    hidden = [one for one in secrets if len(one) >= 8]

    def clean(text: str) -> str:
        for secret in hidden:
            text = text.replace(secret, HIDDEN_KEY)
        return path.sub(_file_name, _KEYS.sub(HIDDEN_KEY, text))

    return clean


def _file_name(found: re.Match[str]) -> str:
    """The file's name alone; a folder, which may be somebody's, has none. The stop of a sentence is no part of it."""
    text = found[0].rstrip("./")
    name = text.rpartition("/")[2]
    ending = "." * (len(found[0]) - len(found[0].rstrip(".")))
    return (name if re.fullmatch(r".+\.[A-Za-z]\w{0,7}", name) else HIDDEN_PATH) + ending
