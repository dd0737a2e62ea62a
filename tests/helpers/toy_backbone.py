"""Minimal backbone, on which the contract tests run too: a ViT without positions."""
from __future__ import annotations

from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from colonnade.backbones import ColumnarBackbone, register_backbone
from colonnade.backbones.variants import Variants
from colonnade.weights.formats import CheckpointFormat
from colonnade.weights.state_dicts import State


@register_backbone(
    CheckpointFormat(
        'Toy', ('patch_embed.proj.weight', 'blocks.0.attn.qkv.'),
        without=('pos_embed', 'cls_token', 'reg_token', 'blocks.0.attn.proj_l',
                 'blocks.0.norm1.alpha')))
class Toy(ColumnarBackbone):
    """A vision transformer without positions."""
    variants = Variants(
        backbone='Toy',
        rows={'tiny': dict(embed_dim=192, depth=12, num_heads=4, patch_size=16)},
        defaults=dict(num_heads=4),
        shown_columns=('embed_dim', 'depth', 'patch_size'))
    stem_names = ('patch_embed', )

    def timm_module(self, img_size: int | tuple[int, int], num_classes: int = 0) -> nn.Module:
        sizes = dict(self.settings, img_size=img_size, num_classes=num_classes)
        return VisionTransformer(
            **sizes, class_token=False, pos_embed='none', global_pool='avg', fc_norm=False,
            dynamic_img_size=True, dynamic_img_pad=True)  # yapf: disable

    def _build(self, num_blocks: int, *, drop_path_rate: float = 0.,
               num_classes: int | None = None) -> nn.Module:  # yapf: disable
        backbone = self.timm_module(224, num_classes or 0)
        arguments = dict(qkv_bias=True, norm_layer=type(backbone.norm), drop_path=drop_path_rate)
        backbone.blocks = nn.ModuleList(
            Block(self.embed_dim, self.settings['num_heads'], **arguments)
            for _ in range(num_blocks))
        return backbone

    @classmethod
    def infer_arch(cls, state: State) -> dict[str, int]:
        weight = state['patch_embed.proj.weight']
        depth = len({key.split('.')[1] for key in state if key.startswith('blocks.')})
        return dict(embed_dim=len(weight), depth=depth, patch_size=weight.shape[-1])

    def _embed(self, img: Tensor) -> tuple[Tensor, tuple]:
        x = self.patch_embed(img)  # (B, h, w, C)
        return x.flatten(1, 2), x.shape[1:3]

    def _run_block(self, block: nn.Module, x: Tensor, place: tuple) -> Tensor:
        return block(x)
