"""The store: a run is a directory that is the truth, and finished kernels are kept by the hash of their task."""

from tilewright.records import provenance_path
from tilewright.store.attempt_folder import AttemptFolder
from tilewright.store.durable import Damaged, NoSuchRun, NotAccepted, RunBusy, StoreError, write_text
from tilewright.store.home import NEWEST, RunList, Store, run_folders
from tilewright.store.library import (
    ChangedKernel,
    LibraryEntry,
    LibraryKernel,
    line_authors,
    provenance_of,
)
from tilewright.store.run_folder import Header, Request, RunFolder
