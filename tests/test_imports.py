"""The shape of the house: imports point one way, and `import tilewright` is light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "tilewright"

# part -> parts it may import; a part may always import itself. Keep in step with docs/architecture.md.
ALLOWED: dict[str, set[str]] = {
    "records": set(),
    "kernel_file": {"records"},
    "device_library": {"kernel_file"},
    "ptx": {"records"},
    "store": {"records"},
    "child": {"records"},
    "toolchain": {"records", "kernel_file", "child"},
    "devices": {"records", "kernel_file", "ptx", "child"},
    "worker": {"records", "child", "devices", "reference"},
    "lint": {"records", "kernel_file", "ptx", "toolchain"},
    "runtime": {"records", "kernel_file", "toolchain", "devices"},
    "reference": {"records", "child", "devices"},
    "tasks": {"records", "kernel_file", "reference"},
    "verify": {"records", "kernel_file", "toolchain", "devices", "reference"},
    "measure": {"records", "kernel_file", "toolchain", "lint", "child", "devices", "reference", "verify"},
    "models": {"records"},
    "prompts": {"records", "kernel_file", "tasks", "words"},
    "words": {"records", "tasks"},
    "playbook": {"records", "kernel_file", "device_library", "reference", "tasks"},
    "authors": {"records", "kernel_file", "reference", "tasks", "models", "prompts", "playbook", "words"},
    "refine": {
        "records",
        "kernel_file",
        "store",
        "child",
        "devices",
        "reference",
        "tasks",
        "verify",
        "measure",
        "authors",
    },
    "exports": {"records", "kernel_file", "store", "toolchain", "reference", "__init__"},
    "suites": {"records", "store", "child", "devices"},
    "teaching": {"records", "store", "tasks", "prompts"},
    "importing": {"records", "kernel_file", "child", "toolchain"},
    "__init__": {"runtime", "frontends"},
    "__main__": {"frontends"},
}
ALLOWED["frontends"] = {*ALLOWED} - {"worker", "__main__"}

# What may be imported from outside, beside the standard library.
THIRD_PARTY: dict[str, set[str]] = {
    "records": set(),
    "kernel_file": set(),
    "device_library": set(),
    "ptx": {"numpy"},
    "store": set(),
    "child": set(),
    "toolchain": set(),
    "lint": {"numpy"},
    "devices": {"numpy", "torch", "cuda"},
    "worker": {"numpy", "torch", "cuda"},
    "runtime": {"numpy", "torch"},
    "reference": {"numpy", "torch"},
    "tasks": {"torch"},
    "verify": {"numpy", "torch"},
    "measure": {"numpy", "torch"},
    "models": {"anthropic", "openai", "transformers", "torch"},
    "prompts": {"jinja2"},
    "importing": {"torch"},
    "words": set(),
    "playbook": {"torch", "jinja2"},
    "authors": set(),
    "refine": set(),
    "exports": {"jinja2", "torch", "kernels", "huggingface_hub"},
    "suites": {"ray"},
    "frontends": {
        "jinja2",
        "markupsafe",
        "torch",
        "typer",
        "rich",
        "click",
        "mcp",
        "anyio",
        "smolagents",
        "transformers",
    },
    "__init__": set(),
    "__main__": set(),
}


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported_modules(path: Path) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            assert node.module is not None
            if node.module == "tilewright":
                found += [(node.lineno, f"tilewright.{alias.name}") for alias in node.names]
            else:
                found.append((node.lineno, node.module))
    return found


MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    part = part_of(path)
    assert part in ALLOWED, f"{part} is not in the table of parts"
    for line, module in imported_modules(path):
        names = module.split(".")
        if names[0] == "tilewright":
            target = names[1] if len(names) > 1 else "__init__"
            if target == "__version__":
                target = "__init__"
            assert target == part or target in ALLOWED[part], f"{path}:{line}: {part} may not import {target}"
        elif names[0] not in sys.stdlib_module_names:
            assert names[0] in THIRD_PARTY[part], f"{path}:{line}: {part} may not import {names[0]}"


def test_import_tilewright_is_light() -> None:
    program = "import sys, tilewright; print(sorted({'torch', 'numpy', 'typer', 'rich', 'cuda'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_worker_and_what_it_runs_need_no_package_of_the_command_line() -> None:
    """A GPU box has numpy, torch and cuda-bindings; whatever a reference is asked there is imported there."""
    absent = ("typer", "click", "rich", "jinja2", "anthropic", "openai", "pydantic", "nvidia")
    program = (
        "import sys, torch\n"
        f"sys.modules.update(dict.fromkeys({absent}))\n"
        "import tilewright.worker, tilewright.verify.judging, tilewright.measure.baselines"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_modules_that_the_docs_name_are_there() -> None:
    names = {path.name for path in PACKAGE.rglob("*.py")}
    named = {
        (page.name, name)
        for page in (PACKAGE.parents[1] / "docs").glob("*.md")
        for name in re.findall(r"`([a-z]\w*\.py)`", page.read_text())
    }
    assert len(named) > 3
    assert {(page, name) for page, name in named if name not in names} == set()


def test_making_a_kernel_of_a_file_imports_no_torch() -> None:
    """References and kernels run in children; in the process that waits for them torch would be seconds for nothing."""
    program = "import sys, tilewright.frontends.cli.suite; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
