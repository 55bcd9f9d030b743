"""`load`: an op as ordered kernel files, built on demand and called on CUDA tensors."""

from tilewright.runtime.errors import (
    BuildDuringCapture,
    BuildFailed,
    CallRefused,
    GradientNotSupported,
    LoadError,
    NoKernelApplies,
    NotOnCuda,
    OperationError,
    OverlappingTensors,
    ReferenceUsed,
)
from tilewright.runtime.explanation import ExplainedLaunch, ExplainedLibraryCall, Explanation
from tilewright.runtime.loading import load
from tilewright.runtime.operation import Operation

__all__ = [
    "BuildDuringCapture",
    "BuildFailed",
    "CallRefused",
    "ExplainedLaunch",
    "ExplainedLibraryCall",
    "Explanation",
    "GradientNotSupported",
    "LoadError",
    "NoKernelApplies",
    "NotOnCuda",
    "Operation",
    "OperationError",
    "OverlappingTensors",
    "ReferenceUsed",
    "load",
]
