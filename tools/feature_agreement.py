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

import torch
from mmcv import imread
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.backbones.checkpoint_files import WeightsError
from colonnade.backbones.resmlp import TOKEN_MIXING, AnySizeResBlock
from colonnade.backbones.weights import load_weights


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


def load(config: Path, checkpoint: str, folder: Path, limit: int) -> tuple[nn.Module, Tensor]:
    """The trunk of a trained model, and normalised images of equal size."""
    cfg = Config.fromfile(config)
    init_default_scope(cfg.default_scope)
    model = MODELS.build(cfg.model).eval()
    load_weights(model, checkpoint)
    paths = sorted(path for path in folder.iterdir() if path.suffix in ('.jpg', '.png'))[:limit]
    if not paths:
        raise FileNotFoundError(f'no .jpg or .png images in {folder}')
    inputs = [torch.from_numpy(imread(str(path))).permute(2, 0, 1) for path in paths]
    if len({image.shape for image in inputs}) > 1:
        inputs = [resized(x[None].float(), (512, 512))[0].clamp(0, 255) for x in inputs]
    preprocessor = model.data_preprocessor
    images = torch.stack(inputs).flip(1).float()  # RGB
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
        backbone, images = load(args.config, args.checkpoint, args.images, args.limit)
    except (WeightsError, OSError) as error:
        sys.exit(f'feature_agreement: {error}')
    native = backbone.settings.get('img_size', 224)
    print(f'{"against " + str(native):16}' + ''.join(f'{size:>8}'
                                                     for size in args.sizes) + f'{"crops":>8}')
    blocks = [m for m in backbone.modules() if isinstance(m, AnySizeResBlock)]
    for mixing in TOKEN_MIXING if blocks else [type(backbone).__name__]:
        for block in blocks:
            block.token_mixing = mixing
        values = agreement(backbone, images, native, args.sizes)
        print(f'{mixing:16}' + ''.join(f'{value:8.3f}' for value in values))


if __name__ == '__main__':
    main()
