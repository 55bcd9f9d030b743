"""The store: a run is a directory that is the truth, and finished kernels are kept by the hash of their task."""

from tilewright.store.attempt_folder import AttemptFolder, question_text
from tilewright.store.durable import Damaged, NoSuchRun, NotAccepted, RunBusy, StoreError, write_text
from tilewright.store.home import NEWEST, BrokenRun, RunList, Store, WaitingRequest, default_home
from tilewright.store.library import Library, LibraryEntry, LibraryKernel, provenance_path
from tilewright.store.provenance import line_authors, provenance_of
from tilewright.store.run_folder import Header, Request, RunFolder

__all__ = [
    "NEWEST",
    "AttemptFolder",
    "BrokenRun",
    "Damaged",
    "Header",
    "Library",
    "LibraryEntry",
    "LibraryKernel",
    "NoSuchRun",
    "NotAccepted",
    "Request",
    "RunBusy",
    "RunFolder",
    "RunList",
    "Store",
    "StoreError",
    "WaitingRequest",
    "default_home",
    "line_authors",
    "provenance_of",
    "provenance_path",
    "question_text",
    "write_text",
]
