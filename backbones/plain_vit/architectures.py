"""Which of timm's vision transformers there are, their sizes and what is known of their weights."""
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

from ..kernels.without_memory import without_memory
from ..variants import Settings, Variants, check_sizes

MODULES = ('vision_transformer', 'deit', 'eva')  # of timm, with the models that are supported
SIZES = ('embed_dim', 'depth', 'num_heads', 'patch_size', 'img_size')
#: arguments of timm's classes that a backbone sets itself, or does without
NOT_TAKEN = {
    'self', 'device', 'dtype', 'num_classes', 'dynamic_img_size', 'dynamic_img_pad', 'drop_rate',
    'pos_drop_rate', 'patch_drop_rate', 'drop_path_rate'
}
DEFAULT_MODEL = 'vit_base_patch16_224'  # what a dict changes that names no model
SHOWN = (  # of each family some, for tables and messages; all models of MODULES are supported
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
#: in names of weights whose authors normalise the maps of intermediate blocks
NORMALISED = ('dinov2', 'dinov3', '.dino', 'tipsv2', 'lingbot', 'eupe')


@dataclass(frozen=True)
class Model:
    """What is asked of a model of timm's."""
    sizes: Settings
    arguments: frozenset[str]  # that its class takes


@cache
def known_models() -> frozenset[str]:
    """Names of the models that are supported, without tags."""
    return frozenset(name for module in MODULES for name in list_models(module=module))


@cache
def look_up(name: str) -> Model:
    """One of :func:`known_models`; it is built without memory for weights."""
    with without_memory():
        built = timm.create_model(name)
    patch_size, grid = built.patch_embed.patch_size[0], built.patch_embed.grid_size[0]
    heads = (layer.num_heads for layer in built.blocks[0].modules() if hasattr(layer, 'num_heads'))
    sizes = (built.embed_dim, len(built.blocks), next(heads), patch_size, grid * patch_size)
    kind = Eva if isinstance(built, Eva) else VisionTransformer
    return Model(
        dict(zip(SIZES, sizes, strict=True)),
        frozenset(inspect.signature(kind.__init__).parameters) - NOT_TAKEN)


class ShownModels(Mapping[str, Settings]):
    """The models of :data:`SHOWN` and their sizes, which are looked up when they are needed."""

    def __getitem__(self, name: str) -> Settings:
        if name not in SHOWN:
            raise KeyError(name)
        return dict(model=name, **look_up(name).sizes)

    def __iter__(self) -> Iterator[str]:
        return iter(SHOWN)

    def __len__(self) -> int:
        return len(SHOWN)


class TimmModels(Variants):
    """timm's models by name, with a tag or without, or with some arguments changed."""

    def resolve(self, arch: str | Settings, **changes: Any) -> dict[str, Any]:
        """See :meth:`.Variants.resolve`."""
        given = {key: value for key, value in changes.items() if value is not None}
        settings = self.complete(arch)
        if given:
            named = dict(model=settings['model']) if isinstance(arch, str) else arch
            settings = self.complete({**named, **given})
        for column in SIZES:
            least = 0 if column == 'depth' else 1  # check_sizes() has words for that
            if type(settings[column]) is not int or settings[column] < least:
                raise UserError(f'{column} must be a positive whole number, '
                                f'got {settings[column]!r}')
        check_sizes(settings)
        return settings

    def complete(self, arch: str | Settings) -> dict[str, Any]:
        """See :meth:`.Variants.complete`. The grid of positions is the model's, or img_size's."""
        if not isinstance(arch, Mapping):
            arch = dict(model=arch)
        custom = 'model' not in arch
        name = DEFAULT_MODEL if custom else self._named(arch['model'])
        model = look_up(name)
        required = {'embed_dim', 'depth', 'num_heads'} if custom else set()
        missing, unknown = required - set(arch), set(arch) - model.arguments - {'model'}
        if missing or unknown:
            raise UserError(
                f'a custom arch of {self.backbone} has the keys model (a name of timm\'s), '
                f'{", ".join(SIZES)} and other arguments of timm\'s class: missing '
                f'{sorted(missing)}, unknown {sorted(unknown)}')
        settings = {**model.sizes, **arch, 'model': name}
        if 'img_size' not in arch:
            grid = model.sizes['img_size'] // model.sizes['patch_size']
            settings['img_size'] = grid * settings['patch_size']
        return settings

    def describe(self, settings: Settings) -> str:
        """The sizes that the shapes of a state dict show; many models share them."""
        sizes = ', '.join(f'{column} {settings[column]}' for column in self.shown_columns)
        return f'a {self.backbone} of {sizes}'

    def _named(self, arch: str) -> str:
        """A model's name without its tag, if timm has both."""
        if not isinstance(arch, str):
            raise UserError(f'arch of {self.backbone} must be a name of timm\'s or a dict, '
                            f'got {arch!r}')
        name, _, tag = arch.partition('.')
        known = known_models()
        if name not in known:
            near = get_close_matches(name, known, n=3)
            meant = f'; did you mean {", ".join(near)}?' if near else ''
            raise UserError(f'{self.backbone} has no arch {arch!r}{meant}; it has '
                            f'{", ".join(SHOWN)}, all others of timm\'s {", ".join(MODULES)}, or '
                            'takes a dict')
        if tag and arch not in list_pretrained():
            tags = ', '.join(each.partition('.')[2] for each in list_pretrained(f'{name}.*'))
            raise UserError(f'timm has no weights {arch!r}; of {name} it has {tags or "none"}')
        return name


def are_normalised(weights: str) -> bool:
    """Whether the authors of weights apply the final norm to maps of intermediate blocks."""
    return any(part in weights for part in NORMALISED)
