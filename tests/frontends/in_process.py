"""The command without a process of its own: for what needs no terminal, no signal and no child."""

from __future__ import annotations

import contextlib
import io
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest

from tilewright.frontends.cli.main import main
from tilewright.models import key_variables


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def tilewright(home: Path, *arguments: object, folder: Path | None = None, **variables: str) -> Done:
    """The command's own entry, in this process: what it prints, and the status it would end with.

    `folder`: where it is called from; `variables`: of its environment, which has no other keys.
    """
    stdout, stderr = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
    ):
        for key in key_variables():
            patch.delenv(key, raising=False)
        for name, value in {"TILEWRIGHT_HOME": str(home), **variables}.items():
            patch.setenv(name, value)
        if folder is not None:
            patch.chdir(folder)
        patch.setattr(sys, "argv", ["tilewright", *map(str, arguments)])
        patch.setattr(warnings, "showwarning", warnings.showwarning)  # which the command replaces
        try:
            main()
            code: object = 0
        except SystemExit as ended:
            code = ended.code
    return Done(code if isinstance(code, int) else 0, stdout.getvalue(), stderr.getvalue())
