"""Measure the consistency of ResMLP's features between image sizes.

    python docs/measure_consistency.py sem_fpn/resmlp_nano_12_slim_shapes iter_500.pth \
        work_dirs/demo/shapes/ade/images/validation --sizes 64 96 192 256 384

The reference is the feature maps of the images at the size that the backbone was trained for. Those
of other sizes are resized to it. For crops, each quarter of an image of twice that size is compared
with a run on it alone. A number is the correlation over tokens and images, the mean of all channels
and maps: 1 is agreement, 0 is none.
"""
from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

import torch
from mmengine.registry import MODELS
from torch import Tensor, nn
from torch.nn.functional import interpolate

from colonnade.backbones.resmlp.backbone import TOKEN_MIXING, ResMLPBlock
from colonnade.configs import find_config
from colonnade.runtime.images import SUFFIXES, read_image
from colonnade.settings.reading import read_config
from colonnade.weights.loading import load_weights

SIDE = 512  # pixels; images that differ in size are resized to this one


def resize(x: Tensor, size: tuple[int, int] | torch.Size) -> Tensor:
    """Resize images or maps; bicubic, antialiased."""
    return interpolate(x, size=tuple(size), mode='bicubic', antialias=True)


def read_images(folder: Path, limit: int) -> Tensor:
    """Return the first images of a folder, ``(B, 3, H, W)``, RGB, 0 to 255."""
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)[:limit]
    images = [torch.from_numpy(read_image(path)).permute(2, 0, 1)[None].float() for path in paths]
    if len({image.shape for image in images}) > 1:
        images = [resize(image, (SIDE, SIDE)).clamp(0, 255) for image in images]
    return torch.cat(images)


def compute_correlation(maps: Tensor, expected: Tensor) -> float:
    """Return Pearson's correlation of maps ``(B, C, h, w)``, the mean over channels."""
    maps, expected = (x - x.mean(dim=(0, 2, 3), keepdim=True) for x in (maps, expected))
    product = (maps * expected).sum(dim=(0, 2, 3))
    norms = maps.square().sum(dim=(0, 2, 3)) * expected.square().sum(dim=(0, 2, 3))
    return (product / norms.sqrt()).nanmean().item()


def compute_mean_correlation(pairs: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Return the mean correlation of maps with expected ones, which may be of another size."""
    values = [compute_correlation(resize(x, y.shape[-2:]), y) for x, y in pairs]
    return sum(values) / len(values)


def split_quarters(x: Tensor) -> list[Tensor]:
    """Return the quarters of images or maps, row by row."""
    return [part for half in x.chunk(2, dim=2) for part in half.chunk(2, dim=3)]


def compute_agreement(backbone: nn.Module, images: Tensor, sizes: list[int]) -> list[float]:
    """Return a correlation for each size of the images, then that of crops."""
    native = backbone.settings['img_size']
    reference = backbone(resize(images, (native, native)))
    values = [
        compute_mean_correlation(
            zip(backbone(resize(images, (size, size))), reference, strict=True)) for size in sizes
    ]
    large = resize(images, (2 * native, 2 * native))
    quarters = [split_quarters(each) for each in backbone(large)]
    pairs = [
        pair for index, crop in enumerate(split_quarters(large))
        for pair in zip((parts[index] for parts in quarters), backbone(crop), strict=True)
    ]
    return [*values, compute_mean_correlation(pairs)]


@torch.no_grad()
def main() -> None:
    """Print a row of correlations for each token mixing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('config', help='a config with ResMLP as its backbone')
    parser.add_argument('checkpoint', help='its weights')
    parser.add_argument('images', type=Path, help='folder of images')
    parser.add_argument('--limit', type=int, default=32, help='images to read (32)')
    parser.add_argument('--sizes', nargs='+', type=int, default=[64, 96, 192, 256])
    args = parser.parse_args()
    model = MODELS.build(read_config(find_config(args.config)).model).eval()
    load_weights(model, args.checkpoint)
    images = read_images(args.images, args.limit)
    images = (images - model.data_preprocessor.mean) / model.data_preprocessor.std
    print(f'{"":12}' + ''.join(f'{size:>8}' for size in args.sizes) + '   crops')
    for mixing in TOKEN_MIXING:
        for block in model.modules():
            if isinstance(block, ResMLPBlock):
                block.token_mixing = mixing
        values = compute_agreement(model.backbone, images, args.sizes)
        print(f'{mixing:12}' + ''.join(f'{value:8.3f}' for value in values))


if __name__ == '__main__':
    main()
