"""Components for kernel files, in CUDA C++: a source includes `<tilewright/NAME.cuh>`, `flatten` makes it a file."""

from tilewright.device_library.definitions import Definition, Header, library
from tilewright.device_library.flattening import UnknownHeader, flatten

__all__ = ["Definition", "Header", "UnknownHeader", "flatten", "library"]
