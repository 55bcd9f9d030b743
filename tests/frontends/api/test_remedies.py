"""What was found is said in the words of each front end, and nowhere else."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tilewright.frontends.api.reporter import in_keywords, in_options
from tilewright.frontends.cli.terminal import error_text
from tilewright.playbook.errors import NotSupported
from tilewright.tasks.errors import ArgumentKind, GivenArgument, RefusedRequest, Remedy, RemedyKind, TaskError

SOURCE = Path(__file__).parents[3] / "src" / "tilewright"
_OPTION = re.compile(r"(?<![-\w])--[a-z]")


@pytest.mark.parametrize("kind", RemedyKind, ids=lambda one: one.name)
def test_every_remedy_is_worded_for_both(kind: RemedyKind) -> None:
    error = TaskError("nothing is known of x", Remedy(kind, "x", "8x8:f16"))
    option, keyword, plain = in_options(error), in_keywords(error), str(error)
    assert _OPTION.search(option)
    assert not _OPTION.search(keyword)
    assert not _OPTION.search(plain)
    assert all(text.startswith("nothing is known of x; ") for text in (option, keyword, plain))
    assert len({option, keyword, plain}) == 3


@pytest.mark.parametrize(
    ("error", "option", "keyword"),
    [
        (
            TaskError("f(x): no shape is given for x", Remedy(RemedyKind.GIVE_SHAPE_OR_NUMBER, "x", "4096x1024:bf16")),
            "f(x): no shape is given for x; write --shape x=4096x1024:bf16, or --set x=VALUE if it is a number",
            'f(x): no shape is given for x; write x="4096x1024:bf16", or x=VALUE if it is a number',
        ),
        (
            TaskError("f has no such parameter", given=GivenArgument(ArgumentKind.SHAPE, "z")),
            "--shape z: f has no such parameter",
            "z: f has no such parameter",
        ),
        (
            TaskError("f's eps takes a number", given=GivenArgument(ArgumentKind.NUMBER, "eps", "big")),
            "--set eps=big: f's eps takes a number",
            "eps=big: f's eps takes a number",
        ),
        (
            TaskError("'weird' describes no values", given=GivenArgument(ArgumentKind.VALUES, "x", "weird")),
            "--fill x=weird: 'weird' describes no values",
            'values={"x": "weird"}: \'weird\' describes no values',
        ),
        (
            TaskError("f has no such parameter", given=GivenArgument(ArgumentKind.VALUES, "q")),
            "--fill q: f has no such parameter",
            "values: q: f has no such parameter",
        ),
        (
            NotSupported("the playbook does not support mm"),
            "the playbook does not support mm; --model PROVIDER:NAME asks a model instead, "
            "and --model relay:DIR an agent or a person, by files",
            'the playbook does not support mm; model="PROVIDER:NAME" asks a model instead, '
            'and model="relay:DIR" an agent or a person, by files',
        ),
    ],
)
def test_what_was_found_in_both_words(error: RefusedRequest, option: str, keyword: str) -> None:
    assert in_options(error) == option
    assert in_keywords(error) == keyword


def test_the_command_line_speaks_of_options() -> None:
    assert error_text(TaskError("no value is given for k", Remedy(RemedyKind.GIVE_NUMBER, "k"))) == (
        "tilewright: no value is given for k; write --set k=VALUE"
    )


@pytest.mark.parametrize("package", ["tasks", "playbook"])
def test_no_message_of_theirs_knows_an_option(package: str) -> None:
    for path in (SOURCE / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not _OPTION.search(node.value), f"{path.name}:{node.lineno}: {node.value!r}"
