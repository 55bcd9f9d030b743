"""The exceptions of a loaded operation, all derived from `OperationError`.

Raised unwrapped: `KernelFileError` (a file is wrong), `CallError` (arguments do not fit the op's parameters; a
`TypeError`), `DriverError` (the driver refused), `LibraryStepError`, `ToolchainError`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.kernel_file import Reason
from tilewright.records import BuildFailure, Carried, FindingKind, FindingRecord, Severity

_SHOWN_DIAGNOSTICS = 5


class OperationError(Carried, RuntimeError):
    """Base class of the runtime's errors."""


class LoadError(OperationError):
    """Files that do not make an operation: missing, or with `op` lines that disagree."""


class CallRefused(OperationError):
    """A call that cannot run with these arguments."""


class NotOnCuda(CallRefused):
    """Tensors that do not all lie on one CUDA device, or all on the CPU."""


class KernelNotEmulable(CallRefused):
    """CPU tensors, and a kernel that the emulator cannot run."""


class TooLargeToEmulate(CallRefused):
    """CPU tensors, and a call over the emulator's limit of instructions or memory."""


class OverlappingTensors(CallRefused):
    """A tensor that is changed in place shares memory with another argument."""


class GradientNotSupported(CallRefused):
    """A gradient or tangent is needed, and there is neither a backward kernel nor a reference."""


class NoKernelApplies(CallRefused):
    """No kernel file takes the call, and no reference may run; `reasons` has one per file, in order."""

    def __init__(self, message: str, reasons: tuple[Reason, ...]) -> None:
        self.reasons = reasons
        super().__init__(message)


class KernelFault(OperationError):
    """The emulator found faults in a kernel, listed in `findings`; no tensor was changed."""

    def __init__(self, op: str, file: str, findings: tuple[FindingRecord, ...], indices: Sequence[str] = ()) -> None:
        """`indices`: the integer tensors of the call, whose values may be what is out of range."""
        self.findings = findings
        shown = [str(finding) for finding in findings[:_SHOWN_DIAGNOSTICS]]
        more = len(findings) - _SHOWN_DIAGNOSTICS
        shown += [f"and {more} more"] if more > 0 else []
        if indices and any(finding.kind is FindingKind.OUT_OF_BOUNDS_GLOBAL for finding in findings):
            shown.append(f"check the values in {' and '.join(indices)}: an index out of range reads elsewhere")
        super().__init__("\n".join([f"{op}: {file} is at fault (emulated):", *(f"  {line}" for line in shown)]))


class BuildFailed(OperationError):
    """The selected file does not compile; `failure` has every diagnostic."""

    def __init__(self, file: str, failure: BuildFailure) -> None:
        self.failure = failure
        errors = [str(d) for d in failure.diagnostics if d.severity is Severity.ERROR]
        shown = errors[:_SHOWN_DIAGNOSTICS] or [failure.log.strip()[:2000]]
        more = [f"and {len(errors) - len(shown)} more errors"] if len(errors) > len(shown) else []
        super().__init__(
            "\n".join([f"{file} does not build for {failure.arch}: {failure.reason.value}", *shown, *more])
        )


class BuildDuringCapture(OperationError):
    """A build or a module load would be needed inside a CUDA graph capture."""


class ReferenceUsed(UserWarning):
    """The reference ran because no kernel file took the call; warned once per kind of reason."""


class ChangedKernelFile(UserWarning):
    """A kernel file was changed after it was verified, as the provenance file beside it shows."""
