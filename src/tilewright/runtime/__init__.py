"""`load`: an op as ordered kernel files, built on demand, called on CUDA tensors or, emulated, on CPU tensors."""

from tilewright.runtime.emulated_call import EmulatedCall
from tilewright.runtime.errors import (
    BuildDuringCapture,
    BuildFailed,
    CallRefused,
    GradientNotSupported,
    KernelFault,
    LoadError,
    NoKernelApplies,
    NotEmulable,
    NotOnCuda,
    OperationError,
    OverlappingTensors,
    ReferenceUsed,
    TooLargeToEmulate,
)
from tilewright.runtime.explanation import ExplainedLaunch, ExplainedLibraryCall, Explanation
from tilewright.runtime.loading import load
from tilewright.runtime.operation import Operation

__all__ = [
    "BuildDuringCapture",
    "BuildFailed",
    "CallRefused",
    "EmulatedCall",
    "ExplainedLaunch",
    "ExplainedLibraryCall",
    "Explanation",
    "GradientNotSupported",
    "KernelFault",
    "LoadError",
    "NoKernelApplies",
    "NotEmulable",
    "NotOnCuda",
    "Operation",
    "OperationError",
    "OverlappingTensors",
    "ReferenceUsed",
    "TooLargeToEmulate",
    "load",
]
