"""A build result as three byte strings (record, cubin, PTX): what the cache keeps and what a compile child answers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import NamedTuple

from tilewright.records import Build, BuildFailure, RecordError, from_json, to_json


class Stored(NamedTuple):
    record: bytes  # JSON, without cubin and PTX
    cubin: bytes
    ptx: bytes


def to_stored(result: Build | BuildFailure) -> Stored:
    if isinstance(result, Build):
        bare = replace(result, cubin=b"", ptx="")
        return Stored(json.dumps(to_json(bare)).encode(), result.cubin, result.ptx.encode())
    return Stored(json.dumps(to_json(result)).encode(), b"", b"")


def from_stored(stored: Stored) -> Build | BuildFailure:
    """The result again; raises `RecordError` where the bytes are not one."""
    try:
        data = json.loads(stored.record)
        ptx = stored.ptx.decode()
    except ValueError as error:
        raise RecordError(f"not a stored build: {error}") from None
    if isinstance(data, dict) and data.get("is") == "BuildFailure":
        failure: BuildFailure = from_json(BuildFailure, data)
        return failure
    build: Build = from_json(Build, data)
    return replace(build, cubin=stored.cubin, ptx=ptx)
