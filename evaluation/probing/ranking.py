"""What frozen backbones are worth on a data set, and what they cost: a row for each."""
from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from colonnade.common.progress import Progress
from colonnade.models.complexity import count_parameters, multiply_adds

from .backbones import NamedBackbone
from .feature_cache import FeatureCache, size_of
from .frozen_features import Extractor, Features, compute_features
from .knn import remember
from .linear import train_linear_probe
from .probe_data import Sample
from .probe_metrics import iou_of_classes, mean_iou
from .soft_labels import SoftLabels, soft_labels

ROUNDS = 5  # of timing at least, after one to warm up
TIMING = 2.  # seconds, with more rounds if they are short
MIB = 2**20


@dataclass(frozen=True)
class Row:
    """What was measured of a backbone.

    Attributes:
        linear_miou: Of the linear probe, in percent.
        knn_miou: Of nearest neighbours, in percent.
        parameters: Of the backbone.
        multiply_adds: Of the backbone for a square image of the probe's size.
        seconds: For the same image, the shortest of some rounds.
        feature_bytes: Of the same image, float16.
        linear_ious: Intersection over union of each class, in percent, or NaN.
        knn_ious: As ``linear_ious``.
    """
    backbone: str
    linear_miou: float
    knn_miou: float
    parameters: int
    multiply_adds: int
    seconds: float
    feature_bytes: int
    linear_ious: np.ndarray
    knn_ious: np.ndarray


@dataclass(frozen=True)
class Probes:
    """A data set and what is done with it.

    Attributes:
        classes: Their names.
        train: Training samples.
        val: Validation samples.
        size: Pixels of the shorter side of images.
        out_indices: Blocks whose outputs are the features.
        steps: Of the linear probe.
        memory: Patches that nearest neighbours are among, at most.
        neighbours: How many of them vote.
        temperature: Of their weights.
        seed: Of all that is drawn.
        device: Where everything runs.
        cache: Folder of features.
        trust: Run what is pickled in files of weights.
    """
    classes: tuple[str, ...]
    train: list[Sample]
    val: list[Sample]
    size: int
    out_indices: list[int]
    steps: int
    memory: int
    neighbours: int
    temperature: float
    seed: int
    device: str
    cache: Path
    trust: bool = False

    def measure(self, candidate: NamedBackbone) -> Row:
        """The row of a backbone.

        Raises:
            CacheError: If features cannot be kept.
            FileNotFoundError: If there is no such file of weights.
            ValueError: If the backbone cannot be built or loaded, or an image is none.
        """
        backbone = candidate.build(self.out_indices, seed=self.seed, trust=self.trust)
        mean, std = candidate.normalisation
        extractor = Extractor(backbone, size=self.size, mean=mean, std=std, device=self.device)
        train, val = self._features(extractor)
        targets = [
            soft_labels(sample.label_map(), tuple(each.shape[:2]), len(self.classes))
            for sample, each in zip(self.train, train, strict=True)
        ]
        linear = self._linear_ious(train, targets, val)
        nearest = self._knn_ious(train, targets, val)
        side = extractor.input_size(self.size, self.size)[0]
        image = torch.empty(1, 3, side, side, device='meta')
        work, _ = multiply_adds(copy.deepcopy(backbone).to('meta'), image)
        channels, grid = train[0].shape[2], side // backbone.patch_size
        return Row(candidate.label, mean_iou(linear),
                   mean_iou(nearest), count_parameters(backbone), work,
                   seconds_per_image(extractor,
                                     side), 2 * channels * grid**2, 100 * linear, 100 * nearest)

    def _features(self, extractor: Extractor) -> tuple[Features, Features]:
        """Those of training and validation images."""
        cache = FeatureCache(self.cache, extractor.settings)
        paths = [sample.image for sample in (*self.train, *self.val)]
        with Progress('features', len(paths)) as progress:
            features, computed = compute_features(extractor, paths, cache, progress)
        print(
            f'  features: {computed} of {len(paths)} images computed, '
            f'{size_of(cache.folder) / MIB:.1f} MiB in {cache.folder}',
            flush=True)
        split = len(self.train)
        return Features(cache, features.images[:split]), Features(cache, features.images[split:])

    def _linear_ious(self, train: Features, targets: Sequence[SoftLabels],
                     val: Features) -> np.ndarray:
        with Progress('linear probe', self.steps) as progress:
            probe = train_linear_probe(
                train, targets, len(self.classes), steps=self.steps, seed=self.seed,
                device=self.device, progress=progress)  # yapf: disable
        with Progress('linear probe, evaluation', len(self.val)) as progress:
            return iou_of_classes(
                probe, val, self.val, len(self.classes), device=self.device, progress=progress)

    def _knn_ious(self, train: Features, targets: Sequence[SoftLabels],
                  val: Features) -> np.ndarray:
        nearest = remember(
            train, targets, most=self.memory, seed=self.seed, num_neighbours=self.neighbours,
            temperature=self.temperature, device=self.device)  # yapf: disable
        with Progress('nearest neighbours', len(self.val)) as progress:
            return iou_of_classes(
                nearest, val, self.val, len(self.classes), device=self.device, progress=progress)


@torch.no_grad()
def seconds_per_image(extractor: Extractor, side: int) -> float:
    """The shortest time of the backbone for one square image, resizing not included."""
    image = torch.rand(1, 3, side, side, device=extractor.device)
    seconds: list[float] = []
    while len(seconds) <= ROUNDS or sum(seconds) < TIMING:
        started = time.perf_counter()
        extractor.backbone(image)
        if extractor.device != 'cpu':
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])
