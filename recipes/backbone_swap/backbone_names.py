"""Backbones by name: ``xcit_small_12_p16``, ``vit_small_patch16_dinov3``."""
from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from mmengine.config import Config
from timm.models import list_pretrained

from colonnade.backbones import BACKBONES, ColumnarBackbone, PlainViT
from colonnade.backbones.plain_vit.architectures import list_known_models
from colonnade.backbones.variants import resolve_out_indices
from colonnade.common.errors import UserError
from colonnade.weights.pretrained import IMAGENET, Normalization, get_normalization

CONFIGS = Path(__file__).resolve().parents[2] / 'configs'


@dataclass(frozen=True)
class Backbone:
    """Architecture of a columnar backbone.

    Attributes:
        name: Name as in file names of configs, without the tag of weights.
        cls: Backbone class.
        arch: Architecture of the class.
    """
    name: str
    cls: type[ColumnarBackbone]
    arch: str

    @property
    def settings(self) -> dict[str, Any]:
        """``embed_dim``, ``depth``, ``patch_size`` and other columns of the architecture."""
        return self.cls.variants.complete(self.arch)

    @property
    def normalization(self) -> Normalization | None:
        """Mean and std of images, or None if the weights of the architecture differ in them."""
        weights = self.cls.get_weights_name(self.arch, None)
        if not weights:  # the weights of all classes but PlainViT
            return IMAGENET
        if (published := get_normalization(weights)) is None:
            return None
        mean, std = ([round(value, 3) for value in values] for values in published)
        return mean, std

    @property
    def checkpoint(self) -> str:
        """Value of ``checkpoint`` in ``init_cfg``, as far as it is known."""
        if self.cls is PlainViT:
            return f'timm://{self.arch}' + ('' if '.' in self.arch else '.TAG')
        name = re.sub(r'^resmlp_s', 'resmlp_', self.name).replace('resmlp_b', 'resmlp_big_')
        published = [each for each in list_pretrained() if re.match(rf'{name}[_.]', each)]
        return f'timm://{max(published)}' if published else 'FILE'

    def build_config(self, num_maps: int, indices: list[int]) -> dict[str, Any]:
        """Return ``model.backbone``.

        Args:
            num_maps: Number of feature maps of the backbone that is replaced.
            indices: Indices of the maps that are read.
        """
        default = resolve_out_indices(None, self.settings['depth'])
        # The deepest of the four default blocks; with more than four maps, some are duplicated.
        blocks = default[-num_maps:] if num_maps <= 4 else \
            [default[4 * index // num_maps] for index in range(num_maps)]
        out_indices = tuple(blocks[index] for index in indices)
        config: dict[str, Any] = dict(type=self.cls.__name__, arch=self.arch)
        if out_indices != default:
            config['out_indices'] = out_indices
        recipe = CONFIGS / 'mask_rcnn' / f'{self.name}_3x_coco.py'
        rate = 0.1 if self.cls is PlainViT else None
        if recipe.is_file():
            rate = Config.fromfile(recipe).model.backbone.get('drop_path_rate')
        return config if rate is None else dict(config, drop_path_rate=rate)


def find_backbone(name: str) -> Backbone:
    """Return the backbone with a name of Colonnade's configs, or with timm's name of a plain ViT.

    Raises:
        ValueError: If it does not exist.
    """
    names = []
    for cls in BACKBONES.values():
        if cls is PlainViT:
            continue
        folder = cls.__module__.rpartition('.')[0].rpartition('.')[2] or cls.__name__.lower()
        for arch in cls.variants.rows:
            names.append(f'{folder}_{arch}')
            if name == names[-1]:
                return Backbone(name, cls, arch)
    try:
        PlainViT.variants.complete(name)
    except ValueError as error:
        if name.partition('.')[0] in list_known_models():  # the tag is wrong
            raise
        near = get_close_matches(name, [*names, *list_known_models()], n=3)
        meant = f'did you mean {" or ".join(near)}?' if near else \
            'pass xcit_small_12_p16, or the timm name of a plain ViT, such as ' \
            'vit_small_patch16_dinov3'
        raise UserError(f'unknown backbone {name!r}: {meant}') from error
    return Backbone(name.partition('.')[0], PlainViT, name)
