"""A backbone by its name on the command line: ``xcit_small_12_p16``, ``vit_small_patch16_dinov3``."""
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
    """One of our backbones, of one architecture."""
    name: str  # of our configs, without the tag of weights
    kind: type[ColumnarBackbone]
    arch: str

    @property
    def settings(self) -> dict[str, Any]:
        """Columns of its architecture: ``embed_dim``, ``depth``, ``patch_size`` and others."""
        return self.kind.variants.complete(self.arch)

    @property
    def drop_path_rate(self) -> float | None:
        """As in our recipe for this backbone; None if there is no recipe and no rule."""
        recipe = CONFIGS / 'mask_rcnn' / f'{self.name}_3x_coco.py'
        if not recipe.is_file():
            return 0.1 if self.kind is PlainViT else None
        return Config.fromfile(recipe).model.backbone.get('drop_path_rate')

    @property
    def normalisation(self) -> Normalization | None:
        """Mean and deviation of images; None if the architecture's weights differ in them."""
        weights = self.kind.get_weights_name(self.arch, None)
        if not weights:  # all published ones of our other backbones
            return IMAGENET
        if (found := get_normalization(weights)) is None:
            return None
        mean, std = ([round(value, 3) for value in values] for values in found)
        return mean, std

    @property
    def checkpoint(self) -> str:
        """What ``init_cfg`` would name, as far as it is known."""
        if self.kind is PlainViT:
            return f'timm://{self.arch}' + ('' if '.' in self.arch else '.TAG')
        name = re.sub(r'^resmlp_s', 'resmlp_', self.name).replace('resmlp_b', 'resmlp_big_')
        published = [each for each in list_pretrained() if re.match(rf'{name}[_.]', each)]
        return f'timm://{max(published)}' if published else 'FILE'

    def config(self, number: int, used: list[int]) -> dict[str, Any]:
        """Its part of a config.

        Args:
            number: How many maps the backbone gives that it replaces.
            used: Which of them are read.
        """
        four = resolve_out_indices(None, self.settings['depth'])
        # as many of the deepest taps; beyond four, some stand twice
        taps = four[-number:] if number <= 4 else [four[4 * i // number] for i in range(number)]
        chosen = tuple(taps[index] for index in used)
        rate = self.drop_path_rate
        return dict(
            type=self.kind.__name__,
            arch=self.arch,
            **({} if chosen == four else dict(out_indices=chosen)),
            **({} if rate is None else dict(drop_path_rate=rate)))


def find_backbone(name: str) -> Backbone:
    """The backbone of a name as our configs have it, or of timm's name of a plain ViT.

    Raises:
        ValueError: If there is none.
    """
    names = []
    for kind in BACKBONES.values():
        if kind is PlainViT:
            continue
        folder = kind.__module__.rpartition('.')[0].rpartition('.')[2] or kind.__name__.lower()
        for arch in kind.variants.rows:
            names.append(f'{folder}_{arch}')
            if name == names[-1]:
                return Backbone(name, kind, arch)
    try:
        PlainViT.variants.complete(name)
    except ValueError as error:
        if name.partition('.')[0] in list_known_models():  # it is the tag
            raise
        near = get_close_matches(name, [*names, *list_known_models()], n=3)
        meant = f'; did you mean {" or ".join(near)}?' if near else \
            ': xcit_small_12_p16, or timm\'s name of a plain ViT, such as vit_small_patch16_dinov3'
        raise UserError(f'there is no backbone {name}{meant}') from error
    return Backbone(name.partition('.')[0], PlainViT, name)
