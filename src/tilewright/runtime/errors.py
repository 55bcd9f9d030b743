"""What a loaded operation can raise.

    OperationError                 every refusal of the runtime's own
    ├── LoadError                  no such file, nothing in the folder, `op` lines that disagree
    ├── CallRefused                the call cannot run as it was made
    │   ├── NotOnCuda              tensors on two devices, or on one that runs no kernel files
    │   ├── KernelNotEmulable      CPU tensors, and a kernel that the emulator cannot run
    │   ├── TooLargeToEmulate      CPU tensors, and more work than an emulated call may take
    │   ├── OverlappingTensors     a tensor changed in place shares memory with another
    │   ├── GradientNotSupported   a gradient or a tangent is wanted, and neither a backward nor a reference gives it
    │   └── NoKernelApplies        no file takes the call, and there is no reference or `strict` forbids it
    ├── KernelFault                the emulator found a kernel at fault: `findings` says where
    ├── BuildFailed                the compiler refused a file that applies
    └── BuildDuringCapture         a build or a module load would be needed inside a CUDA graph capture

Not wrapped, because they say all there is: `KernelFileError` (a file is wrong), `CallError` (arguments do not fit the
op's parameters; a `TypeError`), `DriverError` (the driver refused), `LibraryStepError`, `ToolchainError`.
"""

from __future__ import annotations

from tilewright.kernel_file import Reason
from tilewright.records import BuildFailure, Carried, FindingRecord, Severity

_SHOWN_DIAGNOSTICS = 5


class OperationError(Carried, RuntimeError):
    """Something the runtime refuses; see the module's docstring for the tree."""


class LoadError(OperationError):
    """Files that do not make an operation."""


class CallRefused(OperationError):
    """A call that cannot run as it was made."""


class NotOnCuda(CallRefused):
    """Tensors that do not all lie on one CUDA device, or all on the CPU."""


class KernelNotEmulable(CallRefused):
    """CPU tensors, and a kernel with an instruction or a feature that the emulator does not have."""


class TooLargeToEmulate(CallRefused):
    """CPU tensors, and more instructions or memory than an emulated call may take."""


class OverlappingTensors(CallRefused):
    """A tensor that is changed in place shares memory with another argument."""


class GradientNotSupported(CallRefused):
    """A gradient or a tangent is wanted, and there is neither a backward operation nor a reference to give it."""


class NoKernelApplies(CallRefused):
    """No kernel file takes the call; `reasons` has one for each file, in order."""

    def __init__(self, message: str, reasons: tuple[Reason, ...]) -> None:
        self.reasons = reasons
        super().__init__(message)


class KernelFault(OperationError):
    """The emulator found a kernel at fault; nothing was changed in place. `findings` has every place."""

    def __init__(self, op: str, file: str, findings: tuple[FindingRecord, ...]) -> None:
        self.findings = findings
        shown = [str(finding) for finding in findings[:_SHOWN_DIAGNOSTICS]]
        more = len(findings) - _SHOWN_DIAGNOSTICS
        shown += [f"and {more} more"] if more > 0 else []
        super().__init__("\n".join([f"{op}: {file} is at fault (emulated):", *(f"  {line}" for line in shown)]))


class BuildFailed(OperationError):
    """A file that applies does not build; `failure` has every diagnostic."""

    def __init__(self, file: str, failure: BuildFailure) -> None:
        self.failure = failure
        errors = [str(d) for d in failure.diagnostics if d.severity is Severity.ERROR]
        shown = errors[:_SHOWN_DIAGNOSTICS] or [failure.log.strip()[:2000]]
        more = [f"and {len(errors) - len(shown)} more errors"] if len(errors) > len(shown) else []
        super().__init__(
            "\n".join([f"{file} does not build for {failure.arch}: {failure.reason.value}", *shown, *more])
        )


class BuildDuringCapture(OperationError):
    """Nothing is built or loaded while a CUDA graph is captured."""


class ReferenceUsed(UserWarning):
    """The reference ran because no kernel file took the call; said once for each kind of reason."""
