"""Ranking of frozen backbones on a dataset: mIoU of probes, and cost."""
from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from colonnade.common.progress import Progress
from colonnade.models.complexity import count_multiply_adds, count_parameters

from .backbones import NamedBackbone
from .feature_cache import FeatureCache, compute_cache_size
from .frozen_features import Extractor, Features, compute_features
from .probe_data import Sample, SoftLabels, compute_soft_labels
from .probes import build_neighbors, compute_class_ious, train_linear_probe

MIN_ROUNDS = 5  # timed rounds, after one to warm up
MIN_SECONDS = 2.  # total time
MIB = 2**20


@dataclass(frozen=True)
class RankingRow:
    """Measurements of a backbone."""
    backbone: str
    linear_miou: float  # mIoU of the linear probe, in percent
    knn_miou: float  # mIoU of k-NN, in percent
    parameters: int
    multiply_adds: int  # for a square image of the probe's size
    seconds: float  # for the same image, minimum of several rounds
    feature_bytes: int  # size for the same image, float16
    linear_ious: np.ndarray  # IoU of each class, in percent, or NaN
    knn_ious: np.ndarray


@dataclass(frozen=True)
class Probes:
    """Dataset, and settings of the probes."""
    classes: tuple[str, ...]
    train: list[Sample]
    val: list[Sample]
    size: int  # pixels of the shorter side of images
    out_indices: list[int]  # blocks whose outputs are the features
    probe_steps: int  # optimizer steps of the linear probe
    knn_patches: int  # maximum number of patches in the k-NN memory
    knn_k: int
    knn_temperature: float
    seed: int
    device: str
    cache: Path  # folder of features
    trust: bool = False  # whether to run code pickled in files of weights

    def measure(self, candidate: NamedBackbone) -> RankingRow:
        """Return the measurements of a backbone."""
        backbone = candidate.build(self.out_indices, seed=self.seed, trust=self.trust)
        mean, std = candidate.normalisation
        extractor = Extractor(backbone, size=self.size, mean=mean, std=std, device=self.device)
        train, val = self._compute_features(extractor)
        targets = [
            compute_soft_labels(sample.label_map(), tuple(each.shape[:2]), len(self.classes))
            for sample, each in zip(self.train, train, strict=True)
        ]
        linear = self._probe_linearly(train, targets, val)
        nearest = self._probe_neighbors(train, targets, val)
        side = extractor.compute_input_size(self.size, self.size)[0]
        image = torch.empty(1, 3, side, side, device='meta')
        work, _ = count_multiply_adds(copy.deepcopy(backbone).to('meta'), image)
        channels, grid = train[0].shape[2], side // backbone.patch_size
        return RankingRow(candidate.label, compute_miou(linear), compute_miou(nearest),
                          count_parameters(backbone), work, time_image(extractor, side),
                          2 * channels * grid**2, 100 * linear, 100 * nearest)

    def _compute_features(self, extractor: Extractor) -> tuple[Features, Features]:
        """Return the features of training and validation images."""
        cache = FeatureCache(self.cache, extractor.settings)
        paths = [sample.image for sample in (*self.train, *self.val)]
        with Progress('features', len(paths)) as progress:
            features, computed = compute_features(extractor, paths, cache, progress)
        print(f'  features: computed for {computed} of {len(paths)} images, '
              f'{compute_cache_size(cache.folder) / MIB:.1f} MiB in {cache.folder}',
              flush=True)  # yapf: disable
        split = len(self.train)
        return Features(cache, features.images[:split]), Features(cache, features.images[split:])

    def _probe_linearly(self, train: Features, targets: Sequence[SoftLabels],
                        val: Features) -> np.ndarray:
        with Progress('linear probe', self.probe_steps) as progress:
            probe = train_linear_probe(
                train, targets, len(self.classes), steps=self.probe_steps, seed=self.seed,
                device=self.device, progress=progress)  # yapf: disable
        with Progress('linear probe, evaluation', len(self.val)) as progress:
            return compute_class_ious(
                probe, val, self.val, len(self.classes), device=self.device, progress=progress)

    def _probe_neighbors(self, train: Features, targets: Sequence[SoftLabels],
                         val: Features) -> np.ndarray:
        nearest = build_neighbors(
            train, targets, max_patches=self.knn_patches, seed=self.seed,
            num_neighbors=self.knn_k, temperature=self.knn_temperature,
            device=self.device)  # yapf: disable
        with Progress('k-NN', len(self.val)) as progress:
            return compute_class_ious(
                nearest, val, self.val, len(self.classes), device=self.device, progress=progress)


def compute_miou(ious: np.ndarray) -> float:
    """Return the mean IoU in percent of the classes that occur."""
    return float(np.nanmean(ious) * 100)


@torch.no_grad()
def time_image(extractor: Extractor, side: int) -> float:
    """Return the minimum seconds of the backbone for one square image, without resizing."""
    image = torch.rand(1, 3, side, side, device=extractor.device)
    seconds: list[float] = []
    while len(seconds) <= MIN_ROUNDS or sum(seconds) < MIN_SECONDS:
        started = time.perf_counter()
        extractor.backbone(image)
        if extractor.device != 'cpu':
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])
