"""The smallest trunk there can be, which all tests of the trunks' contract run on too.

timm's vision transformer without class token and positions, as CONTRIBUTING.md tells it.
"""
from __future__ import annotations

from timm.layers import PatchEmbed
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from colonnade.backbones import ColumnarBackbone, register_trunk
from colonnade.backbones.variants import Variants
from colonnade.weights.layouts import Layout
from colonnade.weights.state_dicts import State


@register_trunk(
    Layout('Toy, timm', ('patch_embed.', 'blocks.0.attn.qkv.', 'norm.')),
    Layout('Toy, ours', ('patch_embed.proj.weight', 'blocks.0.mlp.fc1.')))
class Toy(ColumnarBackbone):
    """A vision transformer without positions."""
    variants = Variants(
        trunk='Toy',
        rows={'tiny': dict(embed_dim=192, depth=12, num_heads=4, patch_size=16)},
        defaults=dict(num_heads=4),
        shown_columns=('embed_dim', 'depth', 'patch_size'))
    stem_names = ('patch_embed', )

    def timm_module(self, img_size: int | tuple[int, int], num_classes: int = 0) -> nn.Module:
        columns = {**self.settings, 'img_size': img_size, 'num_classes': num_classes}
        return VisionTransformer(
            **columns, class_token=False, pos_embed='none', global_pool='avg', fc_norm=False)

    def _build(self,
               num_blocks: int,
               *,
               drop_path_rate: float = 0.,
               num_classes: int | None = None) -> nn.Module:
        trunk = self.timm_module(224, num_classes or 0)
        trunk.patch_embed = PatchEmbed(
            None, self.patch_size, 3, self.embed_dim, strict_img_size=False, dynamic_img_pad=True)
        trunk.blocks = nn.ModuleList(
            Block(
                self.embed_dim,
                self.settings['num_heads'],
                qkv_bias=True,
                drop_path=drop_path_rate,
                norm_layer=trunk.blocks[0].norm1.__class__) for _ in range(num_blocks))
        return trunk

    @classmethod
    def infer_arch(cls, state: State) -> dict[str, int]:
        weight = state['patch_embed.proj.weight']
        blocks = {key.split('.')[1] for key in state if key.startswith('blocks.')}
        if 'blocks.0.attn.qkv.weight' not in state or 'pos_embed' in state:
            raise KeyError('no Toy')
        return dict(embed_dim=len(weight), depth=len(blocks), patch_size=weight.shape[-1])

    def _embed(self, img: Tensor) -> tuple[Tensor, tuple]:
        return self.patch_embed(img), self.patch_embed.dynamic_feat_size(img.shape[-2:])

    def _run_block(self, block: nn.Module, x: Tensor, place: tuple) -> Tensor:
        return block(x)
