"""Feature maps of a frozen backbone for images of a dataset, cached on disk.

Shapes: ``H, W`` height and width of an image, ``p`` patch size, ``h = H / p`` and ``w = W / p`` the
grid of patches, ``C`` channels of all feature maps.
"""
from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cv2
import mmcv
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from colonnade import backbones
from colonnade.backbones import ColumnarBackbone
from colonnade.common.errors import UserError
from colonnade.common.progress import no_progress

from .feature_cache import CacheError, FeatureCache

MAX_RATIO = 4  # ratio of an image's sides; longer images are shrunk, as in mmseg


class Extractor:
    """Frozen backbone with the preprocessing of its images.

    Images are resized to ``size`` pixels on the shorter side and a multiple of the patch size.

    Args:
        backbone: Backbone whose feature maps are extracted.
        size: Pixels of the shorter side.
        mean: Mean of red, green and blue, of values from 0 to 255.
        std: Standard deviations.
        device: Device of the backbone.
    """

    def __init__(self,
                 backbone: ColumnarBackbone,
                 *,
                 size: int,
                 mean: Sequence[float],
                 std: Sequence[float],
                 device: str = 'cpu') -> None:
        if size < backbone.patch_size:
            raise UserError(f'--size must be at least {backbone.patch_size} (one patch), '
                            f'got {size}')
        self.backbone = backbone.eval().requires_grad_(False).to(device)
        self.size, self.mean, self.std, self.device = size, list(mean), list(std), device

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Everything that features depend on, except the image and the processor's rounding."""
        network, weights, source = self.backbone, hashlib.sha256(), hashlib.sha256()
        for name, value in sorted(network.state_dict().items()):
            weights.update(f'{name} {tuple(value.shape)} {value.dtype} '.encode())
            weights.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        for path in (*sorted(Path(backbones.__file__).parent.rglob('*.py')), Path(__file__)):
            source.update(f'{path.name} '.encode() + path.read_bytes())
        return dict(
            network=type(network).__name__,
            settings={
                key: repr(value)
                for key, value in network.settings.items()
            },
            layers=hash_content(repr(network).encode()),
            weights=weights.hexdigest(),
            out_indices=list(network.out_indices),
            norm_features=network.norm_features,
            size=self.size,
            mean=self.mean,
            std=self.std,
            precision='computed in float32, kept in float16',
            torch=torch.__version__,
            timm=version('timm'),
            opencv=cv2.__version__,
            source=source.hexdigest())

    def compute_input_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width to which an image is resized."""
        scale = min(self.size / min(height, width), MAX_RATIO * self.size / max(height, width))
        patch = self.backbone.patch_size
        return (max(1, round(height * scale / patch)) * patch,
                max(1, round(width * scale / patch)) * patch)

    @torch.no_grad()
    def __call__(self, content: bytes, name: Path) -> np.ndarray:
        """Return the features ``(h, w, C)``, float16, of the content of an image file.

        Resizing is bicubic and antialiased.
        """
        try:
            pixels = mmcv.imfrombytes(content, channel_order='rgb')
        except cv2.error:
            pixels = None
        if pixels is None:
            raise UserError(f'{name} is not a readable image')
        image = torch.from_numpy(pixels).permute(2, 0, 1).to(self.device)[None].float()
        size = self.compute_input_size(*image.shape[-2:])
        image = F.interpolate(image, size=size, mode='bicubic', antialias=True).clamp(0, 255)
        mean, std = (image.new_tensor(values).view(3, 1, 1) for values in (self.mean, self.std))
        maps = self.backbone((image - mean) / std)
        features = torch.cat(maps, dim=1)[0].permute(1, 2, 0).half()
        if not features.isfinite().all():
            raise UserError(f'features of {name} contain NaN or Inf in float16')
        return features.cpu().contiguous().numpy()


class Features(Sequence[Tensor]):
    """Features ``(h, w, C)`` of images, float16, read from disk one at a time."""

    def __init__(self, cache: FeatureCache, images: list[str]) -> None:
        self.cache, self.images = cache, images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: Any) -> Any:
        features = self.cache.read(self.images[index])
        if features is None:
            raise CacheError(f'{self.cache.get_path(self.images[index])} was modified or removed '
                             'while it was in use')
        return torch.from_numpy(features)


def compute_features(extractor: Extractor,
                     paths: Sequence[Path],
                     cache: FeatureCache,
                     progress: Callable[[int], None] = no_progress) -> tuple[Features, int]:
    """Return the features of images, and the number of images that the cache lacked."""
    images, computed = [], 0
    for done, path in enumerate(paths, 1):
        content = path.read_bytes()
        image = hash_content(content)
        if cache.read(image) is None:
            cache.write(image, extractor(content, path))
            computed += 1
        images.append(image)
        progress(done)
    return Features(cache, images), computed


def hash_content(content: bytes) -> str:
    """Return the SHA-256 of bytes."""
    return hashlib.sha256(content).hexdigest()
