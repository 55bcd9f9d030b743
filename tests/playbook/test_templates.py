"""The CUDA of the schedules in `kernels/`: every section is used, and every section asked for is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tilewright.playbook
from tilewright.playbook import templates
from tilewright.playbook.templates import sections

_PLAYBOOK = Path(tilewright.playbook.__file__).parent
_TEMPLATES = sorted(
    one.relative_to(_PLAYBOOK / "kernels").with_suffix("").as_posix() for one in (_PLAYBOOK / "kernels").rglob("*.cu")
)


def _asked() -> Iterator[tuple[str, str]]:
    """Template and section, wherever a module reads one."""
    for path in _PLAYBOOK.rglob("*.py"):
        text = path.read_text()
        for name, template in re.findall(r'^(\w+) = sections\("([\w/]+)"\)', text, re.MULTILINE):
            yield from ((template, section) for section in re.findall(rf'\b{name}\["(\w+)"\]', text))
        yield from re.findall(r'sections\("([\w/]+)"\)\["(\w+)"\]', text)


def test_every_section_is_used_and_every_one_used_is_there() -> None:
    assert {(template, section) for template in _TEMPLATES for section in sections(template)} == set(_asked())


@pytest.mark.parametrize("name", _TEMPLATES)
def test_a_section_is_named_once(name: str) -> None:
    text = (_PLAYBOOK / "kernels" / f"{name}.cu").read_text()
    names = re.findall(r"^//@ (\w+)$", text, re.MULTILINE)
    assert len(names) == text.count("//@") == len(set(names))
    assert list(sections(name)) == names


def test_sections_are_kept_to_the_letter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "//# About it.\n\n//@ first\nint a;\n\nint b;\n\n//# Why.\n//@ second\n  int @c;\n"
    (tmp_path / "some.cu").write_text(text)
    monkeypatch.setattr(templates, "_FOLDER", tmp_path)
    assert dict(sections("some")) == {"first": "int a;\n\nint b;\n", "second": "  int @c;\n"}
