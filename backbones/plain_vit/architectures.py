"""Architectures of plain vision transformers: timm's models and their sizes."""
from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any

import timm
from timm.models import list_models, list_pretrained
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer

from colonnade.common.errors import UserError

from ..kernels.devices import on_meta_device
from ..variants import Settings, Variants, check_sizes

MODULES = ('vision_transformer', 'deit', 'eva')  # timm modules whose models are supported
SIZES = ('embed_dim', 'depth', 'num_heads', 'patch_size', 'img_size')
#: arguments of timm's classes that a backbone sets itself or does not use
UNSUPPORTED = {
    'self', 'device', 'dtype', 'num_classes', 'dynamic_img_size', 'dynamic_img_pad', 'drop_rate',
    'pos_drop_rate', 'patch_drop_rate', 'drop_path_rate'
}
DEFAULT_MODEL = 'vit_base_patch16_224'  # base of a dict without model
SHOWN = (  # examples of each family, for tables and messages
    'vit_small_patch16_dinov3',
    'vit_base_patch16_dinov3',
    'vit_small_patch14_dinov2',
    'vit_base_patch14_reg4_dinov2',
    'deit3_small_patch16_224',
    'deit3_base_patch16_224',
    'deit_small_distilled_patch16_224',
    'vit_small_patch16_224',
    'vit_base_patch16_224',
    'vit_base_patch16_clip_224',
    'vit_base_patch16_siglip_512',
    'eva02_small_patch14_336',
    'eva02_base_patch14_448',
    'vit_pe_spatial_base_patch16_512',
    'vit_base_patch16_rope_mixed_ape_224',
)
#: parts of names of weights whose authors normalize the maps of intermediate blocks
NORMALISED = ('dinov2', 'dinov3', '.dino', 'tipsv2', 'lingbot', 'eupe')


@dataclass(frozen=True)
class Model:
    """Properties of a timm model."""
    sizes: Settings
    arguments: frozenset[str]  # arguments of its class


@cache
def list_known_models() -> frozenset[str]:
    """Return the names of supported models, without tags."""
    return frozenset(name for module in MODULES for name in list_models(module=module))


@cache
def look_up(name: str) -> Model:
    """Return the properties of a supported model, built on the meta device."""
    with on_meta_device():
        built = timm.create_model(name)
    patch_size, grid = built.patch_embed.patch_size[0], built.patch_embed.grid_size[0]
    heads = (layer.num_heads for layer in built.blocks[0].modules() if 'num_heads' in vars(layer))
    sizes = (built.embed_dim, len(built.blocks), next(heads), patch_size, grid * patch_size)
    kind = Eva if isinstance(built, Eva) else VisionTransformer
    return Model(
        dict(zip(SIZES, sizes, strict=True)),
        frozenset(inspect.signature(kind.__init__).parameters) - UNSUPPORTED)


class ShownModels(Mapping[str, Settings]):
    """Models of :data:`SHOWN` and their sizes, which are looked up lazily."""

    def __getitem__(self, name: str) -> Settings:
        if name not in SHOWN:
            raise KeyError(name)
        return dict(model=name, **look_up(name).sizes)

    def __iter__(self) -> Iterator[str]:
        return iter(SHOWN)

    def __len__(self) -> int:
        return len(SHOWN)


class TimmModels(Variants):
    """timm models by name, with a tag or without, or with some arguments changed."""

    def resolve(self, arch: str | Settings, **changes: Any) -> dict[str, Any]:
        """Return all columns of an architecture, see :meth:`.Variants.resolve`."""
        changes = {key: value for key, value in changes.items() if value is not None}
        settings = self.complete(arch)
        if changes:
            base = dict(model=settings['model']) if isinstance(arch, str) else arch
            settings = self.complete({**base, **changes})
        for column in SIZES:
            least = 0 if column == 'depth' else 1  # check_sizes() reports a depth of 0
            if type(settings[column]) is not int or settings[column] < least:
                raise UserError(f'{column} must be a positive integer, '
                                f'got {settings[column]!r}')
        check_sizes(settings)
        return settings

    def complete(self, arch: str | Settings) -> dict[str, Any]:
        """Return all columns, see :meth:`.Variants.complete`; the default grid is the model's."""
        if not isinstance(arch, Mapping):
            arch = dict(model=arch)
        custom = 'model' not in arch
        name = DEFAULT_MODEL if custom else self._resolve_name(arch['model'])
        model = look_up(name)
        required = {'embed_dim', 'depth', 'num_heads'} if custom else set()
        missing, unknown = required - set(arch), set(arch) - model.arguments - {'model'}
        if missing or unknown:
            raise UserError(f'a custom arch of {self.backbone} takes the keys model (a timm name), '
                            f'{", ".join(SIZES)} and other arguments of timm\'s class: missing '
                            f'{sorted(missing)}, unknown {sorted(unknown)}')
        settings = {**model.sizes, **arch, 'model': name}
        if 'img_size' not in arch:
            grid = model.sizes['img_size'] // model.sizes['patch_size']
            settings['img_size'] = grid * settings['patch_size']
        return settings

    def describe(self, settings: Settings) -> str:
        """Format the ``shown_columns``, which many models share."""
        return f'a {self.backbone} of {self.format_sizes(settings)}'

    def _resolve_name(self, arch: str) -> str:
        """Return a model's name without its tag, or raise a UserError if timm lacks either."""
        if not isinstance(arch, str):
            raise UserError(f'arch of {self.backbone} must be the name of a timm model or a dict, '
                            f'got {arch!r}')
        name, _, tag = arch.partition('.')
        known = list_known_models()
        if name not in known:
            near = get_close_matches(name, known, n=3)
            hint = f' (did you mean {" or ".join(near)}?)' if near else ''
            raise UserError(f'{self.backbone} has no arch {arch!r}{hint}: choose one of '
                            f'{", ".join(SHOWN)} or another model from timm\'s '
                            f'{", ".join(MODULES)}, or pass a dict')
        if tag and arch not in list_pretrained():
            tags = ', '.join(each.partition('.')[2] for each in list_pretrained(f'{name}.*'))
            hint = f'choose a tag of {name}: {tags}' if tags else f'use {name} without a tag'
            raise UserError(f'timm has no weights named {arch!r}: {hint}')
        return name


def are_normalized(weights: str) -> bool:
    """Return True if the authors of weights apply the final norm to intermediate maps."""
    return any(part in weights for part in NORMALISED)
