"""`load`: kernel files as a callable op that builds on demand and runs on CUDA tensors, or emulated on CPU tensors."""

from tilewright.runtime.backends import EmulatedCall
from tilewright.runtime.errors import (
    BuildDuringCapture,
    BuildFailed,
    CallRefused,
    ChangedKernelFile,
    GradientNotSupported,
    KernelFault,
    KernelNotEmulable,
    LoadError,
    NoKernelApplies,
    NotOnCuda,
    OperationError,
    OverlappingTensors,
    ReferenceUsed,
    TooLargeToEmulate,
)
from tilewright.runtime.explanation import Explanation
from tilewright.runtime.files import load
from tilewright.runtime.operation import Operation
