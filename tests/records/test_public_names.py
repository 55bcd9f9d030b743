"""`tilewright.records` has every public name of its modules."""

from __future__ import annotations

import ast
import importlib
import pkgutil

from tilewright import records


def defined_names(module: str) -> set[str]:
    """Classes, functions and constants that a module defines itself, without a leading underscore."""
    path = importlib.import_module(f"tilewright.records.{module}").__file__
    assert path is not None
    with open(path, encoding="utf-8") as stream:
        body = ast.parse(stream.read()).body
    found: set[str] = set()
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return {name for name in found if not name.startswith("_")}


MODULES = {module.name: defined_names(module.name) for module in pkgutil.iter_modules(records.__path__)}


def test_the_package_has_every_public_name_and_each_means_one_thing() -> None:
    for module, names in MODULES.items():
        home = importlib.import_module(f"tilewright.records.{module}")
        assert [name for name in sorted(names) if getattr(records, name, None) != getattr(home, name)] == []


def test_names_that_stored_files_and_others_rely_on_are_there() -> None:
    kept = "Attempt Case Ending Environment Measured Modelled Passed Provenance Rejected Reply Run Settings Task Usage"
    assert set(kept.split()) <= set().union(*MODULES.values())
