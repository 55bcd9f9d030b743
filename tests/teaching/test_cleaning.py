"""What is exported names no folder of this machine, and what only looks like a path stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.teaching.made_runs import SECRET

from tilewright.teaching.lessons import cleaner


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("see /home/alice/work/k.cu:12, or /home/alice.", "see k.cu:12, or PATH."),
        ("-I/usr/local/include 'file:///root/k.py'", "-IPATH 'k.py'"),
        ('File "/tmp/x y/k.py"', 'File "PATH y/k.py"'),
        (f"{Path.home()}/runs", "PATH"),
        (f"the key {SECRET} and hf_{'b2' * 12}", "the key KEY and KEY"),
        ("the password hunter2hunter2", "the password KEY"),
    ],
)
def test_paths_and_keys_go(text: str, said: str) -> None:
    assert cleaner(secrets=["hunter2hunter2", ""])(text) == said


@pytest.mark.parametrize(
    "text",
    [
        "x[i] = a /rows/columns; // y\n/* home/tmp */ n / tmp / 2",
        "https://example.org/home/alice/k.cu",
        "src/tmp/k.cu ../home/k.cu ./usr/k.cu",
        "(n)/tmp/2 + a[i]/home/3",
    ],
)
def test_what_is_no_path_of_a_machine_stays(text: str) -> None:
    assert cleaner()(text) == text


def test_a_folder_with_a_blank_in_its_name_goes_as_a_whole() -> None:
    clean = cleaner(folders=[Path("/volumes/Alice Smith")])
    assert clean("in /volumes/Alice Smith/runs/k.cu") == "in k.cu"
