"""Which of the playbook's kernel files have changed.

    python -m tests.playbook.golden.check [KERNELBENCH] [--only PATTERN] [--diff] [--code] [--write]

Writes every structure's file for the tasks of `tasks.py`, for requests in words, for the tasks of the playbook's tests
and, with a folder of KernelBench's levels, for all of levels 1 and 2, and compares them with `kernels.txt`. No GPU is
needed, and texts take a minute or two. `--code` compiles the files that have changed, and those whose code is unknown,
and tells whether their machine code has changed too. `--diff` shows how texts have changed, where an earlier call wrote
them into build/golden. `--write` brings the list up to date. The first time, a problem of KernelBench may take 12 GiB
(`--processes 1` where that is half of the memory); what its task is stays in build/golden.
"""

from __future__ import annotations

import argparse
import difflib
import fnmatch
import os
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import pytest
from tests.playbook.golden.kernels import (
    FOLDER,
    GPUS,
    Key,
    Make,
    Written,
    code_of,
    further_tasks,
    kernelbench_tasks,
    read_list,
    write_list,
    written,
)
from tests.tasks.in_process import JudgingReference, ask_here

_UNKNOWN = "?"
_BETWEEN = 50  # files compiled between two writings of the list
_TEXTS = FOLDER / "texts"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="KernelBench's folder with level1 and level2")
    parser.add_argument("--only", metavar="PATTERN", default="*", help="tasks such as level2/* or asked/conv*")
    parser.add_argument("--diff", action="store_true", help="show how texts have changed")
    parser.add_argument("--code", action="store_true", help="compile what has changed or is not known")
    parser.add_argument("--write", action="store_true", help="bring the list up to date")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    known = {key: row for key, row in read_list().items() if _is_asked(key, options.folder, options.only)}
    with ProcessPoolExecutor(options.processes, get_context("spawn"), _prepare) as pool:
        found = {one.key: one for one in _all_written(pool, options.folder, options.only)}
        rows = {key: _row(one, known.get(key)) for key, one in found.items()}
        _tell(found, known, options.diff)
        if options.write:
            _write(known, rows)
        if options.code:
            _compile(pool, found, known, rows, options.write)
    sys.exit(any(known.get(key, [""])[0] != row[0] for key, row in rows.items()) or known.keys() != rows.keys())


def _prepare() -> None:
    os.nice(5)
    ask_here(pytest.MonkeyPatch(), JudgingReference)


def _tasks(folder: Path | None) -> dict[str, Make]:
    return further_tasks() | (kernelbench_tasks(folder) if folder else {})


def _is_asked(key: Key, folder: Path | None, only: str) -> bool:
    return (folder is not None or not key[0].startswith("level")) and fnmatch.fnmatch(key[0], only)


def _all_written(pool: ProcessPoolExecutor, folder: Path | None, only: str) -> Iterator[Written]:
    names = [one for one in _tasks(folder) if fnmatch.fnmatch(one, only)]
    for made in pool.map(_written_of, names, [folder] * len(names), chunksize=4):
        yield from made


def _written_of(name: str, folder: Path | None) -> list[Written]:
    _TEXTS.mkdir(parents=True, exist_ok=True)
    found = written(name, _tasks(folder)[name])
    for one in found:
        (_TEXTS / f"{one.hash}.cu").write_text(one.text)
    return found


def _row(one: Written, known: list[str] | None) -> list[str]:
    """The line of the list, with its code where the text is the known one."""
    return known if known and known[0] == one.hash else [one.hash, *[_UNKNOWN] * len(GPUS)]


def _tell(found: Mapping[Key, Written], known: Mapping[Key, list[str]], shows: bool) -> None:
    changed = [key for key, one in found.items() if key in known and known[key][0] != one.hash]
    for verb, keys in (
        ("appeared", found.keys() - known.keys()),
        ("vanished", known.keys() - found.keys()),
        ("changed", changed),
    ):
        for key in sorted(keys):
            print(f"{verb}: {' '.join(key)}")
            if shows and verb == "changed":
                print("".join(_difference(known[key][0], found[key])))
    print(f"{len(found)} texts, {len(changed)} changed")


def _difference(before: str, one: Written) -> Iterator[str]:
    path = _TEXTS / f"{before}.cu"
    if not path.exists():
        return iter([f"  {path} is not there: it is written where a call of this script makes that text\n"])
    lines = [text.splitlines(keepends=True) for text in (path.read_text(), one.text)]
    return difflib.unified_diff(*lines, "before", "after", n=2)


def _compile(
    pool: ProcessPoolExecutor,
    found: Mapping[Key, Written],
    known: Mapping[Key, list[str]],
    rows: dict[Key, list[str]],
    writes: bool,
) -> None:
    """Fill in the hashes of code. A changed text's are compared with what the list has."""
    asked = {
        pool.submit(code_of, found[key], gpu): (key, place)
        for key, row in rows.items()
        for place, gpu in enumerate(GPUS, 1)
        if row[place] == _UNKNOWN
    }
    for number, done in enumerate(as_completed(asked), 1):
        key, place = asked[done]
        rows[key] = [*rows[key][:place], done.result(), *rows[key][place + 1 :]]
        before = known[key][place] if key in known else _UNKNOWN
        if before not in (_UNKNOWN, rows[key][place]):
            print(f"other code on {GPUS[place - 1]}: {' '.join(key)}", flush=True)
        if writes and (number % _BETWEEN == 0 or number == len(asked)):
            _write(known, rows)
    print(f"{len(asked)} compiled")


def _write(known: Mapping[Key, list[str]], rows: Mapping[Key, list[str]]) -> None:
    """Lines of tasks that were not asked for stay."""
    others = {key: row for key, row in read_list().items() if key not in known}
    write_list({**others, **rows})


if __name__ == "__main__":
    main()
