"""Linear and k-NN segmentation of frozen features, and its mIoU.

The linear probe follows DINOv2 (arXiv 2304.07193, 7.4). Neighbors are weighted as in DINO (arXiv
2104.14294, appendix F.1), and are patches that vote with the shares of their classes, as in arXiv
2306.01667.

Shapes: ``n`` patches, ``h, w`` the grid of patches, ``H, W`` height and width of a label map,
``N`` patches of the k-NN memory, ``C`` channels, ``K`` classes.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from mmseg.evaluation import IoUMetric
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.common.errors import UserError
from colonnade.common.progress import no_progress
from colonnade.datasets.custom.label_maps import IGNORED

from .probe_data import Sample, SoftLabels

IMAGES_PER_STEP = 8
LEARNING_RATE = 1e-2  # AdamW
WEIGHT_DECAY = 1e-4
MAX_SIMILARITIES = 2**24  # or votes in memory at once: 64 MiB
MAX_SCORES = 2**25  # scores of pixels and classes in memory at once: 128 MiB


class LinearProbe(nn.Module):
    """Batch norm and a linear layer.

    The norm has the mean and variance of all training patches, not of a batch. Weights start at 0.
    """

    def __init__(self, mean: Tensor, var: Tensor, num_classes: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(len(mean), affine=False).eval()
        self.norm.running_mean.copy_(mean)
        self.norm.running_var.copy_(var)
        self.linear = nn.Linear(len(mean), num_classes)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits ``(n, K)`` of patches ``(n, C)``."""
        return self.linear(self.norm(x))


def train_linear_probe(features: Sequence[Tensor],
                       targets: Sequence[SoftLabels],
                       num_classes: int,
                       *,
                       steps: int,
                       seed: int,
                       device: str = 'cpu',
                       progress: Callable[[int], None] = no_progress) -> LinearProbe:
    """Fit a linear probe to the soft labels of training images.

    The loss is the mean cross-entropy of all labeled pixels of a step, each with the logits of its
    patch. The learning rate decays to 0 by a cosine.
    """
    labeled = [index for index, target in enumerate(targets) if len(target.places)]
    if not labeled:
        raise UserError('no pixel of the training images is labeled')
    probe = LinearProbe(*compute_moments(features), num_classes).to(device)
    optimizer = torch.optim.AdamW(
        probe.linear.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    with torch.enable_grad():
        for step, batch in enumerate(iter_batches(labeled, steps, seed), 1):
            x = torch.cat([features[index].flatten(0, 1) for index in batch])
            shares = torch.cat([targets[index].to_dense() for index in batch]).to(device)
            log_probabilities = probe(x.to(device).float()).log_softmax(dim=1)
            loss = -(shares * log_probabilities).sum() / shares.sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            progress(step)
    return probe


def compute_moments(features: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the mean and variance ``(C)`` of each channel over all patches of all images."""
    count, total, squares = 0, torch.zeros(()), torch.zeros(())
    for each in features:
        x = each.flatten(0, 1).double()
        count, total, squares = count + len(x), total + x.sum(0), squares + x.square().sum(0)
    mean = total / count
    return mean.float(), (squares / count - mean.square()).clamp(min=0).float()


def iter_batches(indices: list[int], steps: int, seed: int) -> Iterator[list[int]]:
    """Yield a batch of indices for each step; all occur equally often, in random order."""
    generator, waiting = torch.Generator().manual_seed(seed), list[int]()
    for _ in range(steps):
        while len(waiting) < min(IMAGES_PER_STEP, len(indices)):
            order = torch.randperm(len(indices), generator=generator).tolist()
            waiting += [indices[place] for place in order]
        yield waiting[:IMAGES_PER_STEP]
        waiting = waiting[IMAGES_PER_STEP:]


class NearestNeighbors:
    """k-NN classifier of patches.

    Args:
        memory: Features of labeled patches, ``(N, C)``.
        votes: Probabilities of classes in each of them, ``(N, K)``.
        num_neighbors: Maximum number of neighbors that vote.
        temperature: Votes are weighted by ``exp(similarity / temperature)``.
    """

    def __init__(self, memory: Tensor, votes: Tensor, *, num_neighbors: int,
                 temperature: float) -> None:
        self.memory, self.votes = F.normalize(memory, dim=1), votes
        self.num_neighbors = min(num_neighbors, len(memory))
        self.temperature = temperature

    def __call__(self, x: Tensor) -> Tensor:
        """Return the probabilities ``(n, K)`` of patches ``(n, C)``."""
        width = max(len(self.memory), self.num_neighbors * self.votes.shape[1])
        rows = max(1, MAX_SIMILARITIES // width)
        return torch.cat([self._vote(part) for part in F.normalize(x, dim=1).split(rows)])

    def _vote(self, x: Tensor) -> Tensor:
        similarities, nearest = (x @ self.memory.T).topk(self.num_neighbors, dim=1)
        weights = (similarities / self.temperature).softmax(dim=1)  # (n, num_neighbors)
        return (weights[:, None] @ self.votes[nearest])[:, 0]


def build_neighbors(features: Sequence[Tensor],
                    targets: Sequence[SoftLabels],
                    *,
                    max_patches: int,
                    seed: int,
                    num_neighbors: int,
                    temperature: float,
                    device: str = 'cpu') -> NearestNeighbors:
    """Return a classifier with a random subset of the labeled patches of training images."""
    labeled = [target.find_labeled() for target in targets]
    total = sum(map(len, labeled))
    if not total:
        raise UserError('no pixel of the training images is labeled')
    drawn = torch.zeros(total, dtype=torch.bool)
    drawn[torch.randperm(total, generator=torch.Generator().manual_seed(seed))[:max_patches]] = True
    memory, votes = [], []
    for index, chosen in enumerate(drawn.split(list(map(len, labeled)))):
        if chosen.any():
            patches = labeled[index][chosen]
            memory.append(features[index].flatten(0, 1)[patches].float())
            votes.append(F.normalize(targets[index].to_dense()[patches], p=1, dim=1))
    return NearestNeighbors(
        torch.cat(memory).to(device),
        torch.cat(votes).to(device),
        num_neighbors=num_neighbors,
        temperature=temperature)


@torch.no_grad()
def compute_class_ious(predict: Callable[[Tensor], Tensor],
                       features: Sequence[Tensor],
                       samples: Sequence[Sample],
                       num_classes: int,
                       device: str = 'cpu',
                       progress: Callable[[int], None] = no_progress) -> np.ndarray:
    """Return the IoU ``(K)`` of each class at full resolution, computed by mmseg's ``IoUMetric``.

    It is NaN for classes that occur neither in label maps nor in predictions.

    Args:
        predict: Returns scores ``(n, K)`` for patches ``(n, C)``.
        features: Features of each image, ``(h, w, C)``.
        samples: Images with label maps.
        num_classes: ``K``.
        device: Device of ``predict``.
        progress: Called with the number of finished images.
    """
    areas = torch.zeros(4, num_classes, dtype=torch.float64)
    for done, (each, sample) in enumerate(zip(features, samples, strict=True), 1):
        label_map = torch.from_numpy(sample.label_map()).long()
        scores = predict(each.flatten(0, 1).to(device).float()).unflatten(0, each.shape[:2])
        predicted = upsample_classes(scores, tuple(label_map.shape)).cpu()
        areas += torch.stack(
            IoUMetric.intersect_and_union(predicted, label_map, num_classes, IGNORED))
        progress(done)
    if not areas[-1].any():
        raise UserError('no pixel of the validation images is labeled')
    return IoUMetric.total_area_to_metrics(*areas)['IoU']


def upsample_classes(scores: Tensor, size: tuple[int, ...]) -> Tensor:
    """Return the best class ``(H, W)`` of bilinearly resized scores ``(h, w, K)``."""
    best = scores.new_full(size, -torch.inf)
    classes = torch.zeros(size, dtype=torch.long, device=scores.device)
    at_once = max(1, MAX_SCORES // (size[0] * size[1]))
    for first in range(0, scores.shape[2], at_once):
        part = scores[:, :, first:first + at_once].permute(2, 0, 1)[None]
        values, places = F.interpolate(part, size=size, mode='bilinear')[0].max(dim=0)
        is_better = values > best
        best = torch.where(is_better, values, best)
        classes = torch.where(is_better, places + first, classes)
    return classes
