"""Frozen backbones by name: timm's pretrained ones, files of weights, random ones."""
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
from colonnade.backbones.kernels.without_memory import without_memory
from colonnade.backbones.registry import infer_backbone
from colonnade.common.errors import UserError
from colonnade.weights import load_weights
from colonnade.weights.layouts import remap
from colonnade.weights.pretrained import IMAGENET, Normalisation, normalisation_of

RANDOM = 'random'


def named_backbones(texts: Sequence[str]) -> list[NamedBackbone]:
    """The backbones that the command line names; of files, labels leave out the folder if they can."""
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
    """A backbone as the command line names it: ``NAME``, ``NAME=FILE`` or ``NAME=random``.

    NAME is timm's, with a tag or without: ``xcit_small_12_p16_384.fb_dist_in1k``. Where the weights
    do not tell the size of images, NAME may leave it out: ``xcit_small_12_p16``. ``CLASS:ARCH``
    names a backbone of our own tables: ``SimplifiedViT:nano_12_p16``.

    Attributes:
        text: What the command line says.
        label: What tables and pictures call it.
    """
    text: str
    label: str = ''

    @property
    def name(self) -> str:
        return self.text.partition('=')[0]

    @property
    def weights(self) -> str:
        """A file, ``timm://NAME``, a URL or ``random``."""
        return self.text.partition('=')[2] or f'timm://{self.name}'

    @property
    def normalisation(self) -> Normalisation:
        """What timm lists for the weights, or else ImageNet's mean and standard deviation."""
        return normalisation_of(self._timm_name or self.name) or IMAGENET

    @cached_property
    def _timm_name(self) -> str | None:
        """A model of timm's, with the tag if one is given."""
        model, dot, tag = self.name.partition('.')
        if timm.is_model(model):
            return self.name
        sizes = [each for each in timm.list_models(f'{model}_*')
                 if re.fullmatch(rf'{re.escape(model)}_\d+', each)]  # yapf: disable
        return sizes[0] + dot + tag if sizes else None

    def build(self, out_indices: list[int], *, seed: int, trust: bool = False) -> ColumnarBackbone:
        """The backbone with its weights.

        Args:
            out_indices: Blocks that are tapped.
            seed: Of random weights.
            trust: See :func:`~colonnade.weights.files.read_checkpoint`.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If there is no such candidate, or the weights cannot be fetched, read or do not
                fit.
        """
        kind, arguments = self._kind()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            backbone = kind(**arguments, out_indices=out_indices)
        if self.weights != RANDOM:
            load_weights(backbone, self.weights, trust=trust)
        return backbone

    def _kind(self) -> tuple[Any, dict[str, Any]]:
        """Class and arguments of the candidate."""
        kind, colon, arch = self.name.partition(':')
        if colon:
            if kind not in BACKBONES:
                raise UserError(f'CLASS:ARCH needs {", ".join(BACKBONES)} for CLASS, got {kind!r}')
            return BACKBONES[kind], dict(arch=arch)
        if self._timm_name is None:
            raise UserError(f'timm has no model {self.name!r}, and it is not CLASS:ARCH, as '
                            'XCiT:small_12_p16')
        model = self._timm_name.partition('.')[0]
        with without_memory():
            state = timm.create_model(model).state_dict()
        candidate, sizes = infer_backbone(remap(state, self.name)[1])
        try:
            candidate.variants.complete(model)
        except ValueError:  # its table has other names than timm
            return candidate, dict(arch=candidate.variants.name_in_table(sizes) or sizes)
        return candidate, dict(arch=self._timm_name)
