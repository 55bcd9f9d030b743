"""The runs that are taught of, from what a person named, and what must not leave this machine with them."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich.text import Text

from tilewright.frontends.kernel_arguments import BadArgument
from tilewright.frontends.terminal import stderr_console
from tilewright.frontends.view.shelf import chosen
from tilewright.models import key_variables
from tilewright.store import NotAccepted, RunFolder, Store, StoreError
from tilewright.store.run_folder import HEADER
from tilewright.teaching.cleaning import Clean, cleaner


def chosen_runs(named: Sequence[str]) -> list[RunFolder]:
    """Runs by name, and all runs of a suite's folder or of a folder of runs; each once, those with an attempt."""
    store = Store()
    found: dict[str, RunFolder] = {}
    for what in named:
        choice = chosen(what, store)
        one = choice.find(choice.run) if choice.run else None
        listed = [one] if one is not None else [folder for folder in choice.folders().values() if _is_readable(folder)]
        found |= {str(folder.path.resolve()): folder for folder in listed}
    folders = [folder for folder in found.values() if folder.load().attempts]
    if not folders:
        raise BadArgument(f"{', '.join(named)}: no run here has an attempt to learn from; name others")
    return folders


def _is_readable(folder: RunFolder) -> bool:
    """Whether a folder among runs is one that can be read: others are passed over, and a damaged one is named."""
    try:
        folder.load()
    except NotAccepted:
        return False
    except StoreError as error:
        if (folder.path / HEADER).is_file():
            stderr_console().print(Text(f"passed over: {error}"), soft_wrap=True)
        return False
    return True


def run_cleaner(folders: Sequence[RunFolder]) -> Clean:
    secrets = [os.environ[name] for name in key_variables() if os.environ.get(name)]
    return cleaner(secrets, (Store().home, *(folder.path for folder in folders)))
