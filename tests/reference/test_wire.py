"""Records with byte strings anywhere in them travel whole, and the bytes not as text."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tilewright.devices.envelope import EnvelopeError, unseal
from tilewright.reference.wire import Answered, Request, carried_record, open_message, seal_message


@dataclass(frozen=True)
class Leaf:
    content: bytes
    name: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.content, bytes):
            raise ValueError("no bytes")


@dataclass(frozen=True)
class Tree:
    leaves: tuple[Leaf, ...]
    by_name: dict[str, Leaf]
    maybe: Leaf | None
    plain: int | str = 3


def test_bytes_travel_beside_the_record() -> None:
    large = bytes(range(256)) * 4096
    tree = Tree((Leaf(large, "a"), Leaf(b"")), {"b": Leaf(b"\0" * 8)}, Leaf((2).to_bytes(8, "little")), "text")
    sealed = seal_message(Request("part:handler"), tree)
    assert len(sealed) < len(large) + 2000
    envelope = unseal(sealed)
    assert open_message(envelope) == Request("part:handler")
    assert carried_record(envelope, Tree) == tree


def test_what_is_no_record_of_that_kind_is_refused() -> None:
    envelope = unseal(seal_message(Answered(), Leaf(b"x")))
    with pytest.raises(EnvelopeError, match="what came is not Tree"):
        carried_record(envelope, Tree)
    forged = unseal(seal_message(Answered(), {"content": 5, "name": ""}))
    with pytest.raises(EnvelopeError, match="what came is not Leaf"):
        carried_record(forged, Leaf)
