from pathlib import Path

from tests.frontends.help_pages import help_pages

PAGE = Path(__file__).parents[3] / "docs" / "commands.md"


def test_the_page_is_what_the_program_says() -> None:
    assert PAGE.read_text() == help_pages(), "run `make docs`"
