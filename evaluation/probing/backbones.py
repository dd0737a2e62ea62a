"""Frozen backbones by name: pretrained by timm, from a file, or with random weights."""
from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import timm
import torch

from colonnade.backbones import BACKBONES, ColumnarBackbone
from colonnade.backbones.kernels.devices import on_meta_device
from colonnade.backbones.registry import infer_backbone
from colonnade.common.errors import UserError
from colonnade.weights import load_weights
from colonnade.weights.formats import convert_keys
from colonnade.weights.pretrained import IMAGENET, Normalization, get_normalization

RANDOM = 'random'


def parse_backbones(texts: Sequence[str]) -> list[NamedBackbone]:
    """Return the backbones of the command line, with labels that omit folders if they can."""
    labels = []
    for text in texts:
        name, equals, weights = text.partition('=')
        labels.append(f'{name} ({Path(weights).name})' if equals else name)
    return [
        NamedBackbone(text, label if labels.count(label) == 1 else text)
        for text, label in zip(texts, labels, strict=True)
    ]


@dataclass(frozen=True)
class NamedBackbone:
    """Backbone of the command line: ``NAME``, ``NAME=FILE`` or ``NAME=random``.

    NAME is a timm model with or without a tag, such as ``xcit_small_12_p16_384.fb_dist_in1k``. The
    image size may be omitted (``xcit_small_12_p16``) if the weights do not depend on it.
    ``CLASS:ARCH`` is a backbone of Colonnade, such as ``SimplifiedViT:nano_12_p16``.
    """
    text: str
    label: str = ''  # in tables and plots

    @property
    def name(self) -> str:
        """Name without weights."""
        return self.text.partition('=')[0]

    @property
    def weights(self) -> str:
        """File, ``timm://NAME``, URL or ``random``."""
        return self.text.partition('=')[2] or f'timm://{self.name}'

    @property
    def normalisation(self) -> Normalization:
        """Mean and standard deviation that timm lists for the weights, or else ImageNet's."""
        return get_normalization(self._timm_name or self.name) or IMAGENET

    @cached_property
    def _timm_name(self) -> str | None:
        """Name of a timm model, with the tag if there is one."""
        model, dot, tag = self.name.partition('.')
        if timm.is_model(model):
            return self.name
        sizes = [each for each in timm.list_models(f'{model}_*')
                 if re.fullmatch(rf'{re.escape(model)}_\d+', each)]  # yapf: disable
        return sizes[0] + dot + tag if sizes else None

    def build(self, out_indices: list[int], *, seed: int, trust: bool = False) -> ColumnarBackbone:
        """Return the backbone with its weights, which the seed draws if they are random."""
        backbone_class, arguments = self._find_class()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            backbone = backbone_class(**arguments, out_indices=out_indices)
        if self.weights != RANDOM:
            load_weights(backbone, self.weights, trust=trust)
        return backbone

    def _find_class(self) -> tuple[Any, dict[str, Any]]:
        """Return class and arguments of the backbone."""
        class_name, colon, arch = self.name.partition(':')
        if colon:
            if class_name not in BACKBONES:
                raise UserError(f'CLASS in CLASS:ARCH must be one of {", ".join(BACKBONES)}, got '
                                f'{class_name!r}')
            return BACKBONES[class_name], dict(arch=arch)
        if self._timm_name is None:
            raise UserError(f'{self.name!r} is neither a timm model nor CLASS:ARCH, such as '
                            'XCiT:small_12_p16')
        model = self._timm_name.partition('.')[0]
        with on_meta_device():
            state = timm.create_model(model).state_dict()
        backbone_class, sizes = infer_backbone(convert_keys(state, self.name)[1])
        try:
            backbone_class.variants.complete(model)
        except ValueError:  # The table of this class has other names than timm.
            return backbone_class, dict(arch=backbone_class.variants.find_name(sizes) or sizes)
        return backbone_class, dict(arch=self._timm_name)
