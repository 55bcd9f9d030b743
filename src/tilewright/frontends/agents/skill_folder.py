"""The Agent Skill: a folder that teaches a coding agent to drive Tilewright, made of this package's own texts.

`skills/tilewright` of the repository is what `tilewright skill skills` writes; a test keeps the two equal.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from tilewright import __version__
from tilewright.frontends.agents.tools import TOOLS, AgentTool
from tilewright.kernel_file import contract
from tilewright.prompts.advice import GPU_FAMILIES, card, family_card
from tilewright.records import Kind
from tilewright.store import write_text
from tilewright.tasks.errors import BadArgument

NAME = "tilewright"
_WRITTEN = ("SKILL.md", "references/cli.md", "references/in-a-model.md")  # by hand, in `skill_text`


def skill_files() -> dict[str, str]:
    """Every file of the skill by its path within it."""
    texts = resources.files("tilewright.frontends.agents").joinpath("skill_text")
    files = {path: texts.joinpath(*path.split("/")).read_text(encoding="utf-8") for path in _WRITTEN}
    kinds = {f"references/advice-{one.value}.md": card(one) for one in Kind}
    families = {f"references/gpu-{one}.md": family_card(one) for one in GPU_FAMILIES}
    for name, text in (("version", __version__), ("kinds", _links(kinds)), ("families", _links(families))):
        files["SKILL.md"] = files["SKILL.md"].replace(f"{{{name}}}", text)
    files["references/tools.md"] = tools_page()
    files["references/kernel-format.md"] = f"# The kernel file\n\n{contract().strip()}\n"
    return {**files, **kinds, **families}


def write_skill(folder: Path) -> Path:
    """Write the skill into `folder`, where a client looks for skills; returns its own folder."""
    if not folder.is_dir():
        raise BadArgument(f"{folder}: there is no such folder; give the one that holds an agent's skills")
    for path, text in skill_files().items():
        target = folder / NAME / path
        target.parent.mkdir(parents=True, exist_ok=True)
        write_text(target, text)
    return folder / NAME


def tools_page() -> str:
    """The tools as a page."""
    head = "# Tools\n\nA refusal is an error of the tool with one sentence: what is wrong, and what to do.\n"
    return "\n".join([head, *map(_section, TOOLS.values())])


def _section(tool: AgentTool) -> str:
    rows = [
        f"| `{one.name}` | {one.kind.value} | {'required' if one.default is None else 'optional'} | {one.description} |"
        for one in tool.parameters
    ]
    table = "\n".join(["| parameter | type | | |", "|---|---|---|---|", *rows])
    return f"## {tool.name}\n\n{tool.description}\n\n{table}\n"


def _links(files: dict[str, str]) -> str:
    return ", ".join(f"[{Path(path).stem.partition('-')[2]}]({path})" for path in files)
