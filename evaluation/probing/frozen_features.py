"""The maps of a frozen backbone for images of a data set, computed once and kept on disk.

Shapes: ``H, W`` height and width of an image, ``p`` patch size, ``h = H / p`` and ``w = W / p`` the
grid of patches, ``C`` channels of all tapped blocks.
"""
from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from colonnade import backbones
from colonnade.backbones import ColumnarBackbone
from colonnade.common.errors import UserError
from colonnade.common.progress import no_progress

from ..image_decoding import decode_image
from .feature_cache import CacheError, FeatureCache

LONGEST = 4  # sides of an image, the long one to the short one; more is shrunk, as mmseg does


class Extractor:
    """A frozen network, and how images are brought before it.

    An image is resized so that its shorter side has ``size`` pixels and both are whole patches.

    Args:
        backbone: The backbone; its tapped blocks are what is extracted.
        size: Pixels of the shorter side.
        mean: Of red, green and blue, of values from 0 to 255.
        std: Their standard deviations.
        device: Where the backbone runs.

    Raises:
        ValueError: If ``size`` is less than a patch.
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
        """All that features depend on besides the image, of which the cache makes its key.

        Not in it: the processor, whose rounding differs in the last digits.
        """
        network = self.backbone
        return dict(
            network=type(network).__name__,
            settings={
                key: repr(value)
                for key, value in network.settings.items()
            },
            layers=_hash_of(repr(network).encode()),
            weights=_hash_of_weights(network),
            out_indices=list(network.out_indices),
            tap_norm=network.tap_norm,
            size=self.size,
            mean=self.mean,
            std=self.std,
            precision='computed in float32, kept in float16',
            torch=torch.__version__,
            timm=version('timm'),
            opencv=cv2.__version__,
            source=_hash_of_source())

    def input_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width to which an image is resized."""
        scale = min(self.size / min(height, width), LONGEST * self.size / max(height, width))
        patch = self.backbone.patch_size
        return (max(1, round(height * scale / patch)) * patch,
                max(1, round(width * scale / patch)) * patch)

    def prepare(self, content: bytes, name: Path) -> Tensor:
        """A file's bytes as a normalised image ``(1, 3, H, W)``, RGB.

        Resizing is bicubic and antialiased.

        Raises:
            ValueError: If it is no image.
        """
        image = decode_image(content, name).to(self.device)[None].float()
        size = self.input_size(*image.shape[-2:])
        image = F.interpolate(image, size=size, mode='bicubic', antialias=True).clamp(0, 255)
        mean, std = (image.new_tensor(values).view(3, 1, 1) for values in (self.mean, self.std))
        return (image - mean) / std

    @torch.no_grad()
    def __call__(self, content: bytes, name: Path) -> np.ndarray:
        """Features ``(h, w, C)`` of an image file's bytes, float16.

        Raises:
            ValueError: If it is no image, or if features are not finite in float16.
        """
        maps = self.backbone(self.prepare(content, name))
        features = torch.cat(maps, dim=1)[0].permute(1, 2, 0).half()
        if not features.isfinite().all():
            raise UserError(f'features of {name} are not finite in float16')
        return features.cpu().contiguous().numpy()


class Features(Sequence[Tensor]):
    """Features ``(h, w, C)`` of images, float16, read from disk one at a time.

    Args:
        cache: Where they are.
        images: Hashes of the image files, in order.
    """

    def __init__(self, cache: FeatureCache, images: list[str]) -> None:
        self.cache, self.images = cache, images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: Any) -> Any:
        features = self.cache.read(self.images[index])
        if features is None:
            raise CacheError(f'{self.cache.path_of(self.images[index])} was changed or removed '
                             'while it was in use')
        return torch.from_numpy(features)


def compute_features(extractor: Extractor,
                     paths: Sequence[Path],
                     cache: FeatureCache,
                     progress: Callable[[int], None] = no_progress) -> tuple[Features, int]:
    """The features of images, of which those are computed that the cache does not have.

    Args:
        extractor: What computes them.
        paths: Image files.
        cache: The cache of ``extractor.settings``.
        progress: Called with the number of images that are done, after each.

    Returns:
        The features, and how many were computed.

    Raises:
        CacheError: If the cache cannot be read or written.
        OSError: If an image cannot be read.
        ValueError: See :class:`Extractor`.
    """
    images, computed = [], 0
    for done, path in enumerate(paths, 1):
        content = path.read_bytes()
        image = _hash_of(content)
        if cache.read(image) is None:
            cache.write(image, extractor(content, path))
            computed += 1
        images.append(image)
        progress(done)
    return Features(cache, images), computed


def _hash_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _hash_of_weights(network: ColumnarBackbone) -> str:
    """Of names, shapes, types and bytes of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, value in sorted(network.state_dict().items()):
        digest.update(f'{name} {tuple(value.shape)} {value.dtype} '.encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def _hash_of_source() -> str:
    """Of the modules of ours that compute features."""
    digest = hashlib.sha256()
    folder = Path(backbones.__file__).parent
    for path in (*sorted(folder.rglob('*.py')), Path(__file__)):
        digest.update(f'{path.name} '.encode() + path.read_bytes())
    return digest.hexdigest()
