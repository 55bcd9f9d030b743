"""A page as one Python program: its blocks in order, run as somebody who follows the page would run them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.docs.blocks import ROOT, Block

PROMPT = "$ "


def program(blocks: Iterable[Block]) -> str:
    """The blocks that can be run here as one program; Python blocks share their names, commands their folder."""
    parts = ["from tests.docs.transcripts import shell as _shell"]
    for block in blocks:
        if not block.needs:
            parts.append(f"# line {block.line}\n{_part(block)}")
    return "\n\n".join(parts) + "\n"


def run_page(blocks: Iterable[Block], folder: Path) -> None:
    """Run the program in a folder of its own, with a library of its own and no key; the page is wrong if it fails."""
    for name in ("examples", "gallery"):
        (folder / name).symlink_to(ROOT / name)
    script = folder / "page.py"
    script.write_text(program(blocks))
    environment = {name: value for name, value in os.environ.items() if not name.endswith(("_API_KEY", "_TOKEN"))}
    environment |= {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "TILEWRIGHT_HOME": str(folder / "home"),
        "COLUMNS": "160",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run([sys.executable, script], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]


def _part(block: Block) -> str:
    if block.file_name is not None:
        name = block.file_name
        return f"__import__('pathlib').Path({name!r}).write_text({block.text!r})"
    if block.language == "python":
        return block.text
    if block.language == "console":
        return "\n".join(f"_shell({command!r}, {shown!r})" for command, shown in _entries(block.text))
    if block.language == "sh":
        return "\n".join(f"_shell({command!r})" for command in block.commands)
    return ""


def _entries(text: str) -> list[tuple[str, str]]:
    """The commands of a transcript, each with what is shown under it."""
    entries: list[tuple[str, str]] = []
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith(PROMPT):
            entries.append((line.removeprefix(PROMPT), ""))
        else:
            command, shown = entries[-1]
            entries[-1] = (command, f"{shown}{line}\n")
    return entries
