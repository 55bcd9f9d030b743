"""Sentences on how a kernel was verified and measured, for an export's README and Hub card."""

from __future__ import annotations

from tilewright.exports.source import Source, Standing
from tilewright.kernel_file.supported_sizes import size_limits_of_files
from tilewright.records import Measured, SizeLimit


def verification_text(source: Source) -> str:
    known = source.provenance
    if known is None or source.standing in (Standing.EDITED, Standing.FAILED, Standing.UNJUDGED):
        return f"This kernel is {source.standing.words}."
    error = "" if known.worst_error is None else f", with at most {known.worst_error:.2f} of the allowed error"
    where = f" on {', '.join(known.verified_on)}" if known.verified_on else ""
    text = f"Run {known.run} verified it in {known.right_cases} cases{where}{error}."
    if source.standing is not Standing.VERIFIED:
        text += f" It is {source.standing.words}."
    of_sizes = (SizeLimit.NOTE, SizeLimit.FORMER_NOTE)  # one file's; see `sizes_text`
    notes = [note for note in known.notes if not note.startswith(of_sizes)]
    return f"{text} Noted: {'; '.join(notes)}." if notes else text


def sizes_text(source: Source) -> str:
    """Which of the requested sizes the files take together; "" for all, or if the task is unknown."""
    if source.task is None:
        return ""
    limits = size_limits_of_files(source.task, source.files, source.task.profile)
    return f"Of the requested sizes the kernel takes only {SizeLimit.words(limits)}" if limits else ""


def measurement_text(source: Source) -> str:
    """The run's measured or modelled time."""
    known = source.provenance
    if known is None or known.measurement is None or source.standing is Standing.EDITED:
        return "No measurement is on record."
    found = known.measurement
    sizes = ", ".join(f"{name} = {size}" for name, size in found.sizes.items())
    if isinstance(found, Measured):
        beside = "".join(f"; {one.name} {one.median_us:.1f} us" for one in found.baselines)
        return f"Measured on {found.gpu} with a cold cache at {sizes}: {found.time_us:.1f} us{beside} (medians)."
    return (
        f"Not measured on a GPU. The performance model, from emulated counts, gives {found.time_us:.1f} us on "
        f"{found.gpu} at {sizes}; a modelled time ranks kernels and is no measurement."
    )
