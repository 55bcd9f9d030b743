"""Exit codes: 0 done; 1 no kernel, or one that is rejected; 2 bad input; 3 a fault of the machine or of a service;
130 interrupted. An error that has no code here is a fault of this program: it shows its traceback, and ends with 3."""

from __future__ import annotations

from tilewright.devices.protocol import DeviceError
from tilewright.frontends.arguments import BadArgument
from tilewright.kernel_file import KernelFileError
from tilewright.store import NoSuchRun, NotAccepted, StoreError
from tilewright.toolchain import ToolchainError

INTERRUPTED = 130
FAULT = 3


class NotDone(Exception):
    """A command that ends without a fault and without what was asked for; the message says why."""

    def __init__(self, message: str, code: int) -> None:
        self.code = code
        super().__init__(message)


def exit_code(error: BaseException) -> int | None:
    """The code of an error that is to be expected; None for any other."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, NotDone):
        return error.code
    if isinstance(error, KernelFileError):
        return 1
    if isinstance(error, (BadArgument, NoSuchRun, NotAccepted)):
        return 2
    if isinstance(error, (ToolchainError, DeviceError, StoreError, OSError)):
        return 3
    return _code_of_making(error)


def _code_of_making(error: BaseException) -> int | None:
    # Looked up late: building and checking a file need none of these.
    from tilewright.models import BadModelName, BadPriceTable, MissingKey, MissingPackage, ModelError
    from tilewright.prompts.replies import ReplyProblem
    from tilewright.reference import ReferenceProblem
    from tilewright.tasks import RefusedRequest

    if isinstance(error, (RefusedRequest, ReferenceProblem)):
        return 2
    if isinstance(error, (BadModelName, BadPriceTable, MissingKey, MissingPackage)):
        return 2
    if isinstance(error, ReplyProblem):
        return 1
    return 3 if isinstance(error, ModelError) else None


def _in_options(error: BaseException) -> str:
    # Looked up late, as above.
    from tilewright.frontends.remedies import in_options
    from tilewright.tasks import RefusedRequest

    return in_options(error) if isinstance(error, RefusedRequest) else str(error)


def error_text(error: BaseException) -> str:
    """The one sentence to print, and how to go on where a run is under way."""
    if isinstance(error, KeyboardInterrupt):
        text = "tilewright: interrupted"
    elif isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        text = f"tilewright: {place}{error.strerror or error}"
    elif isinstance(error, KernelFileError):
        text = str(error)
    else:
        text = f"tilewright: {_in_options(error)}"
    return "\n".join([text, *getattr(error, "__notes__", ())])
