"""Classes of patches by their nearest neighbours among those of training images.

Neighbours are weighted as in DINO (arXiv 2104.14294, appendix F.1). They are patches and vote with
the shares of their classes, as in arXiv 2306.01667.

Shapes: ``n`` patches, ``N`` patches of the memory, ``C`` channels, ``K`` classes.
"""
from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from colonnade.common.errors import UserError

from .soft_labels import SoftLabels

MOST_VALUES = 2**24  # similarities, or votes, that are in memory at once: 64 MiB


class NearestNeighbours:
    """A memory of labelled patches.

    Args:
        memory: Their features, ``(N, C)``.
        votes: Probabilities of classes in each, ``(N, K)``.
        num_neighbours: That vote for a patch; all if there are fewer.
        temperature: Votes are weighted by ``exp(similarity / temperature)``.
    """

    def __init__(self, memory: Tensor, votes: Tensor, *, num_neighbours: int,
                 temperature: float) -> None:
        self.memory, self.votes = F.normalize(memory, dim=1), votes
        self.num_neighbours = min(num_neighbours, len(memory))
        self.temperature = temperature

    def __call__(self, x: Tensor) -> Tensor:
        """Features of patches ``(n, C)`` to probabilities ``(n, K)``."""
        width = max(len(self.memory), self.num_neighbours * self.votes.shape[1])
        rows = max(1, MOST_VALUES // width)
        return torch.cat([self._vote(part) for part in F.normalize(x, dim=1).split(rows)])

    def _vote(self, x: Tensor) -> Tensor:
        similarities, nearest = (x @ self.memory.T).topk(self.num_neighbours, dim=1)
        weights = (similarities / self.temperature).softmax(dim=1)  # (n, num_neighbours)
        return (weights[:, None] @ self.votes[nearest])[:, 0]


def remember(features: Sequence[Tensor],
             targets: Sequence[SoftLabels],
             *,
             most: int,
             seed: int,
             num_neighbours: int,
             temperature: float,
             device: str = 'cpu') -> NearestNeighbours:
    """A memory of at most so many patches with a labelled pixel, drawn by the seed.

    Args:
        features: Of each training image, ``(h, w, C)``.
        targets: Of each training image.
        most: ``N``.
        seed: Which patches are drawn.
        num_neighbours: See :class:`NearestNeighbours`.
        temperature: See :class:`NearestNeighbours`.
        device: Where the memory is.

    Raises:
        ValueError: If no pixel is labelled.
    """
    labelled = [target.labelled() for target in targets]
    total = sum(map(len, labelled))
    if not total:
        raise UserError('no pixel of the training images is labelled')
    drawn = torch.zeros(total, dtype=torch.bool)
    drawn[torch.randperm(total, generator=torch.Generator().manual_seed(seed))[:most]] = True
    memory, votes = [], []
    for index, chosen in enumerate(drawn.split(list(map(len, labelled)))):
        if chosen.any():
            patches = labelled[index][chosen]
            memory.append(features[index].flatten(0, 1)[patches].float())
            votes.append(F.normalize(targets[index].dense()[patches], p=1, dim=1))
    return NearestNeighbours(
        torch.cat(memory).to(device),
        torch.cat(votes).to(device),
        num_neighbours=num_neighbours,
        temperature=temperature)
