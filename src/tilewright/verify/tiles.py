"""A result cut into tiles: neighbouring elements, whose errors are looked at together."""

from __future__ import annotations

import math

import torch

LEAST_TILE = 64  # elements; shorter rows are taken together
_ROW_TILE = 256  # longer rows are cut into such pieces
_LONGEST_ROW = 512


def _filled_up(values: torch.Tensor, length: int, empty: float) -> torch.Tensor:
    """The last dimension at a length; not copied where it has it."""
    missing = length - values.shape[-1]
    return torch.nn.functional.pad(values, (0, missing), value=empty) if missing else values


class Tiles:
    """Neighbouring elements taken together: rows, pieces of long rows, several short rows."""

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        self._shape = shape
        elements = math.prod(shape)
        row = shape[-1] if shape else 1
        if len(shape) == 1:
            row = min(row, LEAST_TILE)
        if row > _LONGEST_ROW:
            self._row, self._tile = row, _ROW_TILE
        else:
            taken = max(1, -(-LEAST_TILE // max(row, 1)))
            self._row = self._tile = max(row * taken, 1)
        self._rows = -(-elements // self._row) if elements else 0
        self._pieces = -(-self._row // self._tile)
        self.counts = self._counted(elements, device)

    def _counted(self, elements: int, device: torch.device) -> torch.Tensor:
        """How many elements each tile has."""
        starts = torch.arange(self._pieces, device=device) * self._tile
        within = (self._row - starts).clamp(max=self._tile)
        left = elements - torch.arange(self._rows, device=device) * self._row  # the last row may be a part of one
        counts = torch.minimum(within[None, :], (left[:, None] - starts[None, :]).clamp(min=0))
        return counts.flatten().double()

    def cut(self, values: torch.Tensor, empty: float = 0.0) -> torch.Tensor:
        """[tiles, elements of a tile], with `empty` where a tile is not full. Not copied where all of them are."""
        rows = _filled_up(values.reshape(-1), self._rows * self._row, empty).view(self._rows, self._row)
        return _filled_up(rows, self._pieces * self._tile, empty).reshape(-1, self._tile)

    def whole(self, cut: torch.Tensor) -> torch.Tensor:
        """What was cut, in the shape it had."""
        flat = cut.view(self._rows, self._pieces * self._tile)[:, : self._row].reshape(-1)
        return flat[: math.prod(self._shape)].view(self._shape)

    def mean_square(self, cut: torch.Tensor) -> torch.Tensor:
        """The root of each tile's mean square."""
        sizes: torch.Tensor = torch.linalg.vector_norm(cut, dim=-1)
        return sizes / self.counts.clamp(min=1).sqrt()

    def total(self, mean_squares: torch.Tensor) -> float:
        """The root of the sum of all squares, from those of the tiles."""
        return float((mean_squares.square() * self.counts).sum().sqrt())

    def median(self, cut: torch.Tensor) -> torch.Tensor:
        """Each tile's median of what is a number; 0 where nothing is."""
        middle = cut.nanmedian(-1).values
        return torch.where(middle.isfinite(), middle, 0.0)

    def spread(self, tiles: torch.Tensor) -> torch.Tensor:
        """A value of each tile, given to each of its elements."""
        return self.whole(tiles.view(-1, 1).expand(-1, self._tile).contiguous())
