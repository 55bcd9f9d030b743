"""docs/device-library.md is what the headers say, and every component says what it costs and where it works."""

from __future__ import annotations

import re

from tests.docs.blocks import ROOT

from tilewright.device_library import flatten, library
from tilewright.device_library.page import facts_of, page


def test_the_page_is_what_the_headers_say() -> None:
    assert (ROOT / "docs" / "device-library.md").read_text() == page(), "run `make docs`"


def test_every_component_has_a_contract_a_cost_and_an_architecture() -> None:
    for header in library().values():
        assert header.comment, header.name
        for one in header.definitions:
            if one.comment and not one.name.startswith("TW_"):
                facts = facts_of(one)
                assert facts.get("cost"), f"{header.name}: {one.name}"
                assert facts.get("arch") in ("sm_80", "sm_90", "sm_90a"), f"{header.name}: {one.name}"
                assert re.match(r"[A-Za-z0-9_.]", one.comment[0]), f"{header.name}: {one.name}"


def test_its_example_can_be_flattened() -> None:
    (example,) = re.findall(r"```cuda\n(.*?)```", page(), re.DOTALL)
    assert "struct Sum" in flatten(example)
