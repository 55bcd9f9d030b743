from tests.docs.api_page import api_page
from tests.docs.blocks import ROOT


def test_the_page_is_what_the_program_says() -> None:
    assert (ROOT / "docs" / "api.md").read_text() == api_page(), "run `make docs`"
