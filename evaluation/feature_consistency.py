"""How well a trunk's features agree between sizes of an image, and between image and crop."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from mmengine.registry import MODELS
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.backbones import TRUNKS, ColumnarBackbone
from colonnade.backbones.resmlp.trunk import TOKEN_MIXING, ResMLPBlock
from colonnade.common.errors import MissingFileError, UserError, file_errors
from colonnade.runtime.images import SUFFIXES
from colonnade.settings.reading import build_error, read_config
from colonnade.settings.registries import find_class
from colonnade.weights.loading import load_weights

from .image_decoding import decode_image


def resized(x: Tensor, size: tuple[int, int] | torch.Size) -> Tensor:
    """Images or maps at another size; bicubic, antialiased."""
    return F.interpolate(x, size=tuple(size), mode='bicubic', antialias=True)


def correlation(got: Tensor, expected: Tensor) -> float:
    """Pearson's, of two maps ``(B, C, h, w)`` over B, h and w, mean over the channels."""
    got, expected = (x - x.mean(dim=(0, 2, 3), keepdim=True) for x in (got, expected))
    product = (got * expected).sum(dim=(0, 2, 3))
    norms = got.square().sum(dim=(0, 2, 3)) * expected.square().sum(dim=(0, 2, 3))
    return (product / norms.sqrt()).nanmean().item()


def agreement(backbone: nn.Module, images: Tensor, native: int, sizes: list[int]) -> list[float]:
    """Correlations for each size, then for crops.

    Args:
        backbone: In evaluation mode.
        images: ``(B, 3, H, W)``, normalised, at their original size.
        native: Side of the images that the trunk is for.
        sizes: Sides to compare it with.
    """

    def mean(pairs: list[tuple[Tensor, Tensor]]) -> float:
        return sum(correlation(got, expected) for got, expected in pairs) / len(pairs)

    reference = backbone(resized(images, (native, native)))
    found = []
    for size in sizes:
        maps = backbone(resized(images, (size, size)))
        found.append(
            mean([(resized(m, r.shape[-2:]), r) for m, r in zip(maps, reference, strict=True)]))
    large = resized(images, (2 * native, 2 * native))
    whole = backbone(large)
    pairs: list[tuple[Tensor, Tensor]] = []
    for top in (0, 1):
        for left in (0, 1):
            crop = large.unflatten(2, (2, -1))[:, :, top].unflatten(3, (2, -1))[:, :, :, left]
            regions = [
                m.unflatten(2, (2, -1))[:, :, top].unflatten(3, (2, -1))[:, :, :, left]
                for m in whole
            ]
            pairs += zip(regions, backbone(crop), strict=True)
    return [*found, mean(pairs)]


def build(config: Path) -> nn.Module:
    """The model of a config.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no config of a model on one of our trunks that normalises its images.
    """
    cfg = read_config(config)
    kind = cfg.model.get('backbone', {}).get('type')
    trunk = find_class(kind, MODELS)
    if not isinstance(trunk, type) or not issubclass(trunk, ColumnarBackbone):
        names = ', '.join(TRUNKS)
        raise UserError(f'the backbone of {config} must be one of {names}, got {kind}')
    with build_error():
        model = MODELS.build(cfg.model).eval()
    if not hasattr(model.data_preprocessor, 'mean'):
        raise UserError(f'model.data_preprocessor of {config} has no mean and std')
    return model


@file_errors()
def read_images(folder: Path, limit: int) -> Tensor:
    """The first images of a folder, ``(B, 3, H, W)``, RGB; resized if they differ in size.

    Raises:
        FileNotFoundError: If there are none.
        ValueError: If a file is no image.
    """
    if not folder.is_dir():
        raise MissingFileError(f'no folder {folder}')
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)[:limit]
    if not paths:
        raise MissingFileError(f'no {", ".join(SUFFIXES)} images in {folder}')
    inputs = [decode_image(path.read_bytes(), path) for path in paths]
    if len({image.shape for image in inputs}) > 1:
        inputs = [resized(x[None].float(), (512, 512))[0].clamp(0, 255) for x in inputs]
    return torch.stack(inputs).float()


def load(config: Path, checkpoint: str, images: Path, limit: int,
         sizes: list[int]) -> tuple[ColumnarBackbone, Tensor]:
    """The trunk of a trained model, and normalised images ``(B, 3, H, W)`` of equal size.

    Args:
        config: Of a trained model.
        checkpoint: Its weights.
        images: Folder of images.
        limit: How many of them to read.
        sizes: Sides of images that are to be compared.

    Raises:
        FileNotFoundError: If a file or folder is missing.
        ValueError: If they are not what they should be, or options are out of range.
    """
    if limit < 1:
        raise UserError(f'--limit must be at least 1, got {limit}')
    model = build(config)
    backbone = model.backbone
    if small := [size for size in sizes if size < backbone.patch_size]:
        raise UserError(f'--sizes must be at least {backbone.patch_size} (one patch), '
                        f'got {", ".join(map(str, small))}')
    pixels = read_images(images, limit)
    load_weights(model, checkpoint)
    return backbone, (pixels - model.data_preprocessor.mean) / model.data_preprocessor.std


@torch.no_grad()
def agreement_table(backbone: ColumnarBackbone, images: Tensor, sizes: list[int]) -> Iterator[str]:
    """Lines of a table: correlations for each way of mixing tokens.

    Args:
        backbone: A trained trunk.
        images: ``(B, 3, H, W)``, normalised.
        sizes: Sides of images to compare with the side that the trunk is for.
    """
    native = backbone.settings.get('img_size', 224)
    yield f'{"against " + str(native):16}' + ''.join(f'{size:>8}' for size in sizes) + '   crops'
    blocks = [m for m in backbone.modules() if isinstance(m, ResMLPBlock)]
    for mixing in TOKEN_MIXING if blocks else [type(backbone).__name__]:
        for block in blocks:
            block.token_mixing = mixing
        values = agreement(backbone, images, native, sizes)
        yield f'{mixing:16}' + ''.join(f'{value:8.3f}' for value in values)
