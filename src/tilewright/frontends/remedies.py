"""Refusals of `tasks` and `playbook` in the words of each front end: options of a command, or keywords of a call."""

from __future__ import annotations

from tilewright.tasks import errors
from tilewright.tasks.errors import ArgumentKind, GivenArgument, RefusedRequest, Remedy

_OPTIONS = {ArgumentKind.SHAPE: "--shape", ArgumentKind.NUMBER: "--set", ArgumentKind.VALUES: "--fill"}


def in_options(error: RefusedRequest) -> str:
    """What was found and what to do, for the command line."""
    return error.sentence(_given_option, _option_remedy)


def in_keywords(error: RefusedRequest) -> str:
    """The same for a call of `make`."""
    return error.sentence(_given_keyword, _keyword_remedy)


def _given_option(one: GivenArgument) -> str:
    return f"{_OPTIONS[one.kind]} {one.name}" + (f"={one.text}" if one.text else "")


def _option_remedy(remedy: Remedy) -> str:
    match remedy:
        case errors.GiveShape(name, example):
            return f"write --shape {name}={example}"
        case errors.GiveNumber(name):
            return f"write --set {name}=VALUE"
        case errors.GiveShapeOrNumber(name, example):
            return f"write --shape {name}={example}, or --set {name}=VALUE if it is a number"
        case errors.GiveShapeOfEach():
            return "give each tensor's with --shape NAME=SIZES:DTYPE"
        case errors.GiveValues(name, example):
            return f"give other values, such as --fill {name}={example}"
        case errors.GiveArguments():
            return "give them with --shape and --set"
        case errors.AllowDegenerate():
            return "--allow-degenerate makes it anyway"
        case errors.ChooseModel():
            return "--model PROVIDER:NAME asks a model instead"


def _given_keyword(one: GivenArgument) -> str:
    if one.kind is ArgumentKind.VALUES:
        return f'values={{"{one.name}": "{one.text}"}}' if one.text else f"values: {one.name}"
    text = f'"{one.text}"' if one.kind is ArgumentKind.SHAPE else one.text
    return f"{one.name}={text}" if one.text else one.name


def _keyword_remedy(remedy: Remedy) -> str:
    match remedy:
        case errors.GiveShape(name, example):
            return f'write {name}="{example}"'
        case errors.GiveNumber(name):
            return f"write {name}=VALUE"
        case errors.GiveShapeOrNumber(name, example):
            return f'write {name}="{example}", or {name}=VALUE if it is a number'
        case errors.GiveShapeOfEach():
            return 'give each tensor\'s as NAME="SIZES:DTYPE"'
        case errors.GiveValues(name, example):
            return f'give other values, such as values={{"{name}": "{example}"}}'
        case errors.GiveArguments():
            return "give them as keywords"
        case errors.AllowDegenerate():
            return "allow_degenerate=True makes it anyway"
        case errors.ChooseModel():
            return 'model="PROVIDER:NAME" asks a model instead'
