"""Blocks of a backbone that a neck runs, with layers of its own between them."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(eq=False)
class DeferredBlocks:
    """Images and their embedding; no block has run.

    ``B`` images, ``P`` prefix tokens (class and registers), ``N = h w`` patches, ``C`` width.

    Attributes:
        images: Normalized images ``(B, 3, H, W)``.
        tokens: Prefix tokens and patches ``(B, P + N, C)``.
        grid: Rows h and columns w of patches.
        place: What the blocks need to know of the patches.
        num_blocks: Number of blocks.
        num_prefix_tokens: Number P of prefix tokens.
        step: Function that runs a block, given its index, tokens and place.
        to_map: Function that copies tokens to a feature map ``(B, C, h, w)``, given their place.
    """
    images: Tensor
    tokens: Tensor
    grid: tuple[int, int]
    place: tuple
    num_blocks: int
    num_prefix_tokens: int
    step: Callable[[int, Tensor, tuple], Tensor]
    to_map: Callable[[Tensor, tuple], Any]

    def run(self, tokens: Tensor, start: int, stop: int) -> Tensor:
        """Run the blocks from ``start`` to before ``stop`` on tokens ``(B, P + N, C)``."""
        for index in range(start, stop):
            tokens = self.step(index, tokens, self.place)
        return tokens

    def copy_map(self, tokens: Tensor) -> Tensor:
        """Copy tokens ``(B, P + N, C)`` to a feature map ``(B, C, h, w)``."""
        return self.to_map(tokens, self.place)
