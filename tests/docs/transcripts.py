"""A command run for real beside what a page shows of it.

A line of `...` stands for any number of lines, `...` within a line for anything; times in seconds and minutes are not
compared. What a page shows is otherwise to the letter what the program prints.
"""

from __future__ import annotations

import re
import subprocess

ELISION = "..."
TIME = re.compile(r"(?:\d+\\ min\\ )?\d+(?:\\\.\d+)?\\ s\b")  # in a text that is escaped
ANY_TIME = r"(?:\d+ min)?(?: ?[\d.]+ s)?"


class Differs(AssertionError):
    """What a page shows is not what happens."""


def shell(command: str, shown: str = "") -> None:
    """Run a command; it must succeed, or fail as shown, and print what is shown, if anything is."""
    done = subprocess.run(
        command, shell=True, executable="/bin/bash", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode not in (0, 1) or (done.returncode == 1 and not shown):
        raise Differs(f"`{command}` ended with {done.returncode}:\n{done.stdout}")
    compare(command, shown, done.stdout)


def compare(command: str, shown: str, printed: str) -> None:
    """Raise where the lines shown do not stand in what was printed, in their order."""
    lines = [line.rstrip() for line in printed.splitlines()]
    at, free = 0, True
    for line in shown.splitlines():
        if line.strip() == ELISION:
            free = True
            continue
        places = range(at, len(lines)) if free else range(at, min(at + 1, len(lines)))
        found = next((place for place in places if _pattern(line).fullmatch(lines[place])), None)
        if found is None:
            where = "anywhere after" if free else "next to"
            raise Differs(f"`{command}` does not print\n    {line}\n{where} line {at} of what it prints:\n{printed}")
        at, free = found + 1, False


def _pattern(line: str) -> re.Pattern[str]:
    return re.compile(TIME.sub(lambda _: ANY_TIME, re.escape(line.rstrip())).replace(re.escape(ELISION), ".*"))
