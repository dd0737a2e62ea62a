"""How well a trained trunk's features agree between sizes of an image, and between image and crop.

    python tools/feature_agreement.py configs/sem_fpn/resmlp_nano_12_slim_shapes.py iter_500.pth \
        --images work_dirs/demo/shapes/ade/images/validation --sizes 64 96 192 256

The reference are the maps of the images at the size that the trunk is for. Those of other sizes are
resized to it; of images of twice that size, each quarter is compared with a run on it alone. The
numbers are correlations over tokens and images, the mean of all channels and taps: 1 is agreement,
0 is none. ResMLP gives a row for each token mixing.
"""
from __future__ import annotations

import argparse
import sys
from pathlib import Path

import cv2
import torch
from mmcv import imread
from mmengine.registry import MODELS
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.backbones import TRUNKS, ColumnarBackbone
from colonnade.backbones.resmlp.trunk import TOKEN_MIXING, ResMLPBlock
from colonnade.engine.launch import read_config
from colonnade.engine.registries import find_class
from colonnade.weights.loading import load_weights

SUFFIXES = ('.jpg', '.jpeg', '.png')


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
    whole, pairs = backbone(large), []
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
        raise ValueError(f'the backbone of {config} must be one of {names}, got {kind}')
    try:
        model = MODELS.build(cfg.model).eval()
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f'the model of {config} cannot be built: {error.args[0]}') from error
    if not hasattr(model.data_preprocessor, 'mean'):
        raise ValueError(f'model.data_preprocessor of {config} has no mean and std')
    return model


def read_images(folder: Path, limit: int) -> Tensor:
    """The first images of a folder, ``(B, 3, H, W)``, RGB; resized if they differ in size.

    Raises:
        FileNotFoundError: If there are none.
        ValueError: If a file is no image.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f'no folder {folder}')
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)[:limit]
    if not paths:
        raise FileNotFoundError(f'no {", ".join(SUFFIXES)} images in {folder}')
    inputs = []
    for path in paths:
        try:
            image = imread(str(path))
        except cv2.error:
            image = None
        if image is None:
            raise ValueError(f'{path} is no image that can be read')
        inputs.append(torch.from_numpy(image).permute(2, 0, 1))
    if len({image.shape for image in inputs}) > 1:
        inputs = [resized(x[None].float(), (512, 512))[0].clamp(0, 255) for x in inputs]
    return torch.stack(inputs).flip(1).float()


def load(args: argparse.Namespace) -> tuple[ColumnarBackbone, Tensor]:
    """The trunk of a trained model, and normalised images of equal size.

    Raises:
        FileNotFoundError: If a file or folder is missing.
        ValueError: If they are not what they should be, or options are out of range.
    """
    if args.limit < 1:
        raise ValueError(f'--limit must be at least 1, got {args.limit}')
    model = build(args.config)
    patch_size = model.backbone.patch_size
    if small := [size for size in args.sizes if size < patch_size]:
        raise ValueError(f'--sizes must be at least {patch_size} (one patch), '
                         f'got {", ".join(map(str, small))}')
    images = read_images(args.images, args.limit)
    load_weights(model, args.checkpoint)
    preprocessor = model.data_preprocessor
    return model.backbone, (images - preprocessor.mean) / preprocessor.std


@torch.no_grad()
def main() -> None:
    """Print a row of correlations for each way of mixing tokens."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('config', type=Path, help='config of the trained model')
    parser.add_argument('checkpoint', help='its weights')
    parser.add_argument('--images', type=Path, required=True, help='folder of .jpg or .png')
    parser.add_argument('--limit', type=int, default=32, help='images to read (32)')
    parser.add_argument('--sizes', nargs='+', type=int, default=[64, 96, 192, 256])
    args = parser.parse_args()
    try:
        backbone, images = load(args)
    except (ValueError, OSError) as error:
        sys.exit(f'feature_agreement: {error}')
    native = backbone.settings.get('img_size', 224)
    print(f'{"against " + str(native):16}' + ''.join(f'{size:>8}'
                                                     for size in args.sizes) + f'{"crops":>8}')
    blocks = [m for m in backbone.modules() if isinstance(m, ResMLPBlock)]
    for mixing in TOKEN_MIXING if blocks else [type(backbone).__name__]:
        for block in blocks:
            block.token_mixing = mixing
        values = agreement(backbone, images, native, args.sizes)
        print(f'{mixing:16}' + ''.join(f'{value:8.3f}' for value in values))


if __name__ == '__main__':
    main()
