"""The runs that are taught of, from what a person named, and what must not leave this machine with them."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tilewright.frontends.kernel_arguments import BadArgument
from tilewright.frontends.view.shelf import chosen
from tilewright.models import key_variables
from tilewright.store import RunFolder, Store
from tilewright.teaching.cleaning import Clean, cleaner


def chosen_runs(named: Sequence[str]) -> list[RunFolder]:
    """Runs by name, and all runs of a suite's folder or of a folder of runs; each once, those with an attempt."""
    store = Store()
    found: dict[str, RunFolder] = {}
    for what in named:
        choice = chosen(what, store)
        one = choice.find(choice.run) if choice.run else None
        folders = [one] if one is not None else list(choice.folders().values())
        found |= {str(folder.path.resolve()): folder for folder in folders}
    folders = [folder for folder in found.values() if _has_attempts(folder)]
    if not folders:
        raise BadArgument(f"{', '.join(named)}: no run here has an attempt to learn from; name others")
    return folders


def _has_attempts(folder: RunFolder) -> bool:
    return bool(folder.load().attempts)


def run_cleaner(folders: Sequence[RunFolder]) -> Clean:
    secrets = [os.environ[name] for name in key_variables() if os.environ.get(name)]
    return cleaner(secrets, (Store().home, *(folder.path for folder in folders)))
