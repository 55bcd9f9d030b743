"""The bytes between a pool and its children: a request is a sized JSON text, an answer three sized parts."""

from __future__ import annotations

import struct

REQUEST_HEADER = struct.Struct("<Q")
ANSWER_HEADER = struct.Struct("<cQQQ")  # kind, and the sizes of the three parts of a stored result
RESULT, FAULT = b"R", b"F"
