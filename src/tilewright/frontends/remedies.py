"""Refusals of `tasks` and `playbook` in the words of each front end: options of a command, keywords of a call,
arguments of an agent's tool."""

from __future__ import annotations

from tilewright.tasks.errors import ArgumentKind, GivenArgument, RefusedRequest, RemedyKind

_OPTIONS = {ArgumentKind.SHAPE: "--shape", ArgumentKind.NUMBER: "--set", ArgumentKind.VALUES: "--fill"}

OPTION_WORDS = {
    RemedyKind.GIVE_SHAPE: "write --shape {name}={example}",
    RemedyKind.GIVE_NUMBER: "write --set {name}=VALUE",
    RemedyKind.GIVE_SHAPE_OR_NUMBER: "write --shape {name}={example}, or --set {name}=VALUE if it is a number",
    RemedyKind.GIVE_SHAPE_OF_EACH: "give each tensor's with --shape NAME=SIZES:DTYPE",
    RemedyKind.GIVE_VALUES: "give other values, such as --fill {name}={example}",
    RemedyKind.GIVE_ARGUMENTS: "give them with --shape and --set",
    RemedyKind.ALLOW_DEGENERATE: "--allow-degenerate makes it anyway",
    RemedyKind.WRITE_FUNCTION: "give it as a PyTorch function, FILE.py:function with --shape",
    RemedyKind.CHOOSE_MODEL: (
        "--model PROVIDER:NAME asks a model instead, and --model relay:DIR anybody who answers files"
    ),
}

KEYWORD_WORDS = {
    RemedyKind.GIVE_SHAPE: 'write {name}="{example}"',
    RemedyKind.GIVE_NUMBER: "write {name}=VALUE",
    RemedyKind.GIVE_SHAPE_OR_NUMBER: 'write {name}="{example}", or {name}=VALUE if it is a number',
    RemedyKind.GIVE_SHAPE_OF_EACH: 'give each tensor\'s as NAME="SIZES:DTYPE"',
    RemedyKind.GIVE_VALUES: 'give other values, such as values={{"{name}": "{example}"}}',
    RemedyKind.GIVE_ARGUMENTS: "give them as keywords",
    RemedyKind.ALLOW_DEGENERATE: "allow_degenerate=True makes it anyway",
    RemedyKind.WRITE_FUNCTION: "give a PyTorch function instead of words",
    RemedyKind.CHOOSE_MODEL: (
        'model="PROVIDER:NAME" asks a model instead, and model="relay:DIR" anybody who answers files'
    ),
}

ARGUMENT_WORDS = {
    RemedyKind.GIVE_SHAPE: 'give shapes={{"{name}": "{example}"}}',
    RemedyKind.GIVE_NUMBER: 'give numbers={{"{name}": "VALUE"}}',
    RemedyKind.GIVE_SHAPE_OR_NUMBER: 'give shapes={{"{name}": "{example}"}}, or numbers if it is one',
    RemedyKind.GIVE_SHAPE_OF_EACH: 'give shapes={{"NAME": "SIZES:DTYPE", ...}}',
    RemedyKind.GIVE_VALUES: 'give other values, such as values={{"{name}": "{example}"}}',
    RemedyKind.GIVE_ARGUMENTS: "give them as shapes and numbers",
    RemedyKind.ALLOW_DEGENERATE: "specify a function whose result depends on its inputs",
    RemedyKind.WRITE_FUNCTION: "say it otherwise",
    RemedyKind.CHOOSE_MODEL: "write the PyTorch function yourself and give it as source",
}


def in_options(error: RefusedRequest) -> str:
    """What was found and what to do, for the command line."""
    given = error.given
    place = f"{_OPTIONS[given.kind]} {given.name}{given.text and '='}{given.text}" if given else ""
    return error.sentence(place, OPTION_WORDS)


def in_keywords(error: RefusedRequest) -> str:
    """The same for a call of `make`."""
    return error.sentence(_keyword(error.given) if error.given else "", KEYWORD_WORDS)


def in_arguments(error: RefusedRequest) -> str:
    """The same for a call of a tool."""
    given = error.given
    place = f"{given.kind.value} of {given.name}{given.text and ', '}{given.text}" if given else ""
    return error.sentence(place, ARGUMENT_WORDS)


def _keyword(one: GivenArgument) -> str:
    if one.kind is ArgumentKind.VALUES:
        return f'values={{"{one.name}": "{one.text}"}}' if one.text else f"values: {one.name}"
    text = f'"{one.text}"' if one.kind is ArgumentKind.SHAPE else one.text
    return f"{one.name}={text}" if one.text else one.name
