"""The command without a process of its own: for what needs no terminal, no signal and no child."""

from __future__ import annotations

import contextlib
import io
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest

from tilewright.frontends.cli import main
from tilewright.models import key_variables


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def tilewright(home: Path, *arguments: object) -> Done:
    """The command's own entry, in this process: what it prints, and the status it would end with."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
    ):
        patch.setenv("TILEWRIGHT_HOME", str(home))
        for key in key_variables():
            patch.delenv(key, raising=False)
        patch.setattr(sys, "argv", ["tilewright", *map(str, arguments)])
        patch.setattr(warnings, "showwarning", warnings.showwarning)  # which the command replaces
        with pytest.raises(SystemExit) as ended:
            main()
    return Done(int(ended.value.code or 0), stdout.getvalue(), stderr.getvalue())
