"""The Agent Skill is valid, short, equal to the code it speaks of, and has no link that leads nowhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from skills_ref.validator import validate
from tests.frontends.in_process import tilewright
from typer.main import get_command

from tilewright.frontends.agents.tools import TOOLS, skill_files
from tilewright.frontends.cli.main import COMMANDS, app
from tilewright.frontends.report.runs import PROVISIONAL
from tilewright.records.verdict import _REASONS

FOLDER = Path(__file__).parents[3] / "skills" / "tilewright"


def test_the_folder_passes_the_validator_and_is_what_the_command_writes(tmp_path: Path) -> None:
    assert validate(FOLDER) == []
    done = tilewright(tmp_path, "skill", tmp_path)
    assert done.returncode == 0
    assert validate(tmp_path / "tilewright") == []
    kept = {str(path.relative_to(FOLDER)): path.read_text() for path in FOLDER.rglob("*") if path.is_file()}
    assert kept == skill_files(), "run `make docs`"
    assert tilewright(tmp_path, "skill", tmp_path / "none").returncode == 2


def test_what_is_always_read_is_short() -> None:
    text = (FOLDER / "SKILL.md").read_text()
    assert len(text.splitlines()) < 200
    assert len(text) < 20_000  # about 5000 tokens


@pytest.mark.parametrize("path", sorted(skill_files()))
def test_links_lead_somewhere(path: str) -> None:
    for target in re.findall(r"\]\(([\w/.-]+\.md)\)", skill_files()[path]):
        assert (FOLDER / path).parent.joinpath(target).is_file(), target


def test_it_names_every_tool_and_verdict_and_no_other_command_or_option() -> None:
    files = skill_files()
    head = files["SKILL.md"]
    assert all(f"`{name}`" in head for name in TOOLS)
    assert all(f"`{reason}`" in head for reason in (*_REASONS.values(), "passed", PROVISIONAL, "cannot run here"))
    text = head + files["references/cli.md"] + files["references/in-a-model.md"]
    group: Any = get_command(app)
    commands = {name: group.get_command(None, name) for name in COMMANDS}
    named = set(
        re.findall(r"\btilewright ([a-z]+)\b(?! \()", " ".join(re.findall(r"`[^`]*`|^    .*$", text, re.MULTILINE)))
    )
    assert {"make", "resume", "check", "mcp", "doctor"} <= named
    assert named <= set(commands)
    options = {option for command in commands.values() for one in command.params for option in one.opts}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) <= {*options, "--help"}
