"""Every rule fires on the kernel in its section of docs/lint.md, not after the fix: its diff, or a file in fixed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tilewright.frontends.api.kernel_arguments import complete_arguments, parse_arguments
from tilewright.kernel_file import parse
from tilewright.lint import RULES, lint_plan
from tilewright.records import PROFILES, Build, BuildFailure, LintFinding, LintRule
from tilewright.toolchain import build_plan

PAGE = (Path(__file__).parents[2] / "docs" / "lint.md").read_text()
FIXED = Path(__file__).parent / "fixed"
SECTIONS = {text.split("\n", 1)[0]: text for text in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]}
QUICK = (LintRule.MISSING_BOUNDS, LintRule.INDEX_OVERFLOW, LintRule.BANK_CONFLICT)


def findings_of(source: str, shapes: list[str] | None = None) -> tuple[LintFinding, ...]:
    file = parse(source, "kernel.cu")
    gpu = PROFILES["H200"]
    arguments, _ = complete_arguments(file, parse_arguments(file.plan.op, shapes or [], []), gpu)
    built = build_plan(file, arguments, gpu, isolated=False)
    assert not isinstance(built, BuildFailure), built
    assert isinstance(built.build, Build)
    findings, unread = lint_plan(built, arguments)
    assert not unread
    return findings


def examples(rule: LintRule) -> tuple[str, str, list[str]]:
    """The kernel of a rule's section, the same after the fix, and the shapes that the section names."""
    section = SECTIONS[rule.value]
    (firing,) = re.findall(r"```cuda\n(.*?)```", section, re.DOTALL)
    changes = re.findall(r"```diff\n(.*?)```", section, re.DOTALL)
    silent = patched(firing, changes[0]) if changes else (FIXED / f"{rule.value}.cu").read_text()
    return firing, silent, re.findall(r"--shape (\S+?)`", section)


def patched(text: str, diff: str) -> str:
    """The text after a diff without line numbers; its lines are kept (" "), dropped ("-") or new ("+"), in order."""
    rest, done = text.splitlines(), []
    for line in diff.splitlines():
        if line[0] == "+":
            done.append(line[1:])
            continue
        at = rest.index(line[1:])
        done += rest[: at + (line[0] == " ")]
        rest = rest[at + 1 :]
    return "\n".join([*done, *rest]) + "\n"


def test_the_page_has_every_rule_with_its_severity() -> None:
    assert list(SECTIONS) == [rule.value for rule in LintRule] == [rule.value for rule in RULES]
    for rule, text in RULES.items():
        row = next(line for line in PAGE.splitlines() if line.startswith(f"| {text.severity.value} |"))
        assert f"`{rule.value}`" in row


@pytest.mark.parametrize(
    "rule", [pytest.param(rule, marks=[] if rule in QUICK else [pytest.mark.slow]) for rule in LintRule]
)
def test_the_rule_fires_on_the_example_and_not_after_the_fix(rule: LintRule) -> None:
    firing, silent, shapes = examples(rule)
    found = [finding for finding in findings_of(firing, shapes) if finding.rule is rule]
    assert len(found) == 1
    assert found[0].line is not None
    assert found[0].evidence
    assert not [finding for finding in findings_of(silent, shapes) if finding.rule is rule]


def test_the_line_is_that_of_the_access() -> None:
    firing, _, _ = examples(LintRule.MISSING_BOUNDS)
    (finding,) = findings_of(firing)
    assert firing.splitlines()[(finding.line or 0) - 1].strip() == "y[i] = 2.0f * x[i];"
    assert finding.evidence.startswith(
        "thread 1 of block 2042 reads 4 bytes 0 bytes after the end of x = f32[511, 1023]"
    )
