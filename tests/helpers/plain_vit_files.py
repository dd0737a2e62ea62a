"""State dicts of tiny vision transformers in each published layout, made by hand from timm's."""
from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import timm
import torch
from helpers.layouts_by_hand import State, randomised
from torch import nn

from colonnade.backbones import PlainViT
from colonnade.weights.state_dicts import add_prefix, get_state_dict

WIDTH, DEPTH, SIDE = 16, 3, 3  # the last is that of the grid of tokens
SIZES = dict(embed_dim=WIDTH, depth=DEPTH, num_heads=2)


@dataclass(frozen=True)
class File:
    """Published type of file.

    Attributes:
        model: Name of a timm model.
        layout: Format that is detected.
        make: Function from timm's names to those of the file.
        wrapper: Key of the state dict.
        classes: Number of classes.
        sizes: Arguments in addition to :data:`SIZES`.
        timm_reads: True if timm can load such a file.
    """
    model: str
    layout: str
    make: Callable[[State], State]
    wrapper: str | None = None
    classes: int = 0
    sizes: dict[str, Any] = field(default_factory=dict)
    timm_reads: bool = True

    @property
    def arch(self) -> dict[str, Any]:
        patch_size = 14 if 'patch14' in self.model else 16
        sizes = dict(patch_size=patch_size, img_size=SIDE * patch_size)
        return dict(model=self.model, **sizes, **SIZES) | self.sizes

    def module(self, **changes: Any) -> nn.Module:
        """timm's module of the file."""
        arguments = self.arch | changes
        return timm.create_model(arguments.pop('model'), num_classes=self.classes, **arguments)

    @cached_property
    def _tensors(self) -> State:
        torch.manual_seed(1)
        return self.make(randomised(self.module()))

    def content(self) -> dict[str, Any]:
        """Return the content of the file."""
        state = dict(self._tensors)
        return state if self.wrapper is None else {self.wrapper: state, 'epoch': 3}

    def state(self) -> State:
        """The tensors in it."""
        return get_state_dict(self.content(), self.model)

    def by_timm(self, content: dict[str, Any] | None = None, **changes: Any) -> State:
        """State dict of a module of changed arguments that timm itself has loaded a file into."""
        overlay = dict(state_dict=content or self.content(), num_classes=self.classes)
        return self.module(pretrained=True, pretrained_cfg_overlay=overlay, **changes).state_dict()

    def backbone(self, **kwargs: Any) -> PlainViT:
        return PlainViT(self.arch, **kwargs)

    @cached_property
    def one_backbone(self) -> PlainViT:
        """The same at each call, for tests that leave it as it is."""
        return self.backbone()


def renamed(state: State, *rules: tuple[str, str]) -> State:
    """Apply each rule ``(pattern, replacement)`` to every key, in order."""
    result = {}
    for key, value in state.items():
        for pattern, replacement in rules:
            key = re.sub(pattern, replacement, key)
        result[key] = value
    return result


def dinov2(state: State) -> State:
    return {**state, 'mask_token': torch.rand(1, WIDTH)}


def dinov2_with_registers(state: State) -> State:
    """Convert positions, of which the authors keep one for the class token."""
    state = renamed(dinov2(state), ('^reg_token$', 'register_tokens'))
    return {**state, 'pos_embed': torch.rand(1, 1 + SIDE**2, WIDTH)}


def dinov2_giant(state: State) -> State:
    return renamed(dinov2(state), (r'mlp\.fc1', 'mlp.w12'), (r'mlp\.fc2', 'mlp.w3'))


def dinov3(state: State, zero: bool = True) -> State:
    """Convert names, and add masks of biases, which are mostly 0, and tensors of training."""
    file = renamed(state, ('^reg_token$', 'storage_tokens'), (r'gamma_(\d)$', r'ls\1.gamma'),
                   (r'mlp\.fc1_g', 'mlp.w1'), (r'mlp\.fc1_x', 'mlp.w2'),
                   (r'(blocks.*\.mlp)\.fc2\b', r'\1.w3' if 'blocks.0.mlp.fc1_g.bias' in state else
                    r'\1.fc2'))  # yapf: disable
    file = {key: value for key, value in file.items() if not key.endswith(('q_bias', 'v_bias'))}
    width = state['cls_token'].shape[-1]
    for key in [key for key in state if key.endswith('.attn.qkv.weight')]:
        bias = key.replace('weight', 'bias')
        file[bias] = (torch.zeros if zero else torch.rand)(3 * width)
        file[f'{bias}_mask'] = torch.ones(3, width).index_fill(0, torch.tensor(1), 0).flatten()
    file['rope_embed.periods'] = torch.rand(16)
    file['mask_token'] = torch.rand(1, width)
    return file | {f'local_cls_norm.{name}': torch.rand(width) for name in ('weight', 'bias')}


def layer_scale_as_parameters(state: State) -> State:
    return renamed(state, (r'ls(\d)\.gamma', r'gamma_\1'))


def with_decoder(state: State) -> State:
    decoder = {
        'decoder_embed.weight': (8, WIDTH),
        'decoder_pos_embed': (1, 1 + SIDE**2, 8),
        'decoder_blocks.0.norm1.weight': (8, ),
        'decoder_norm.weight': (8, ),
        'decoder_pred.bias': (768, ),
        'mask_token': (1, 1, 8),
    }
    return state | {key: torch.rand(shape) for key, shape in decoder.items()}


CLIP_NAMES = ((r'^patch_embed\.proj', 'conv1'), ('^pos_embed$', 'positional_embedding'),
              ('^cls_token$', 'class_embedding'), ('^norm_pre', 'ln_pre'), ('^norm', 'ln_post'),
              (r'^blocks\.', 'transformer.resblocks.'), (r'\.norm(\d)', r'.ln_\1'),
              (r'\.attn\.qkv\.', '.attn.in_proj_'), (r'\.attn\.proj', '.attn.out_proj'),
              (r'mlp\.fc1', 'mlp.c_fc'), (r'mlp\.fc2', 'mlp.c_proj'))  # yapf: disable
TEXT = {
    key: torch.rand(2, WIDTH)
    for key in ('text_projection', 'logit_scale', 'positional_embedding', 'token_embedding.weight',
                'transformer.resblocks.0.attn.in_proj_weight', 'ln_final.weight')
}


def clip_tower(state: State) -> State:
    file = renamed(state, *CLIP_NAMES)
    file['positional_embedding'] = file['positional_embedding'][0]
    file.pop('head.bias', None)
    if 'head.weight' in file:
        file['proj'] = file.pop('head.weight').T
    if 'class_embedding' in file:
        file['class_embedding'] = file['class_embedding'].flatten()
    return file


def with_text(prefix: str, tower: Callable[[State], State], state: State) -> State:
    return add_prefix(tower(state), prefix) | TEXT


def perception_encoder(state: State) -> State:
    file = renamed(clip_tower(state), (r'gamma_(\d)', r'ls_\1.gamma'))
    pool = {key: file.pop(key) for key in list(file) if key.startswith('attn_pool.')}
    if not pool:
        return file
    for name in ('weight', 'bias'):
        parts = [pool.pop(f'attn_pool.{part}.{name}') for part in ('q', 'kv')]
        file[f'attn_pool.attn.in_proj_{name}'] = torch.cat(parts)
    return file | renamed(pool, (r'pool\.proj', 'pool.attn.out_proj'),
                          (r'pool\.(ln_post|norm)', 'pool.layernorm'),
                          (r'pool\.latent', 'pool.probe'))


def eva02(state: State) -> State:
    """Convert names, and add rotary positions."""
    file = renamed(state, (r'mlp\.fc1_g', 'mlp.w1'), (r'mlp\.fc1_x', 'mlp.w2'),
                   (r'mlp\.fc1\.', 'mlp.w12.'), (r'mlp\.fc2', 'mlp.w3'),
                   (r'mlp\.norm', 'mlp.ffn_ln'), (r'attn\.norm', 'attn.inner_attn_ln'),
                   (r'attn\.([qv])_proj\.bias', r'attn.\1_bias'))
    return file | {f'{part}rope.freqs_{function}': torch.rand(SIDE**2, 8)
                   for part in ('', 'blocks.0.attn.')
                   for function in ('cos', 'sin')}  # yapf: disable


def masked(make: Callable[[State], State], state: State) -> State:
    """Convert to a pre-training file, whose norm timm loads as that after pooling."""
    file = renamed(make(state), ('^fc_norm', 'norm'))
    more = dict(mask_token=(1, 1, WIDTH))
    more |= {'lm_head.weight': (9, WIDTH), 'lm_head.bias': (9, )}
    return file | {key: torch.rand(shape) for key, shape in more.items()}


def beit3(state: State) -> State:
    file = {}
    for key, value in state.items():
        if '.attn.qkv.' in key:
            for name, part in zip('qkv', value.chunk(3), strict=True):
                file[key.replace('qkv', f'{name}_proj')] = part
        elif key == 'pos_embed':
            file['beit3.encoder.embed_positions.A.weight'] = torch.cat(
                (torch.rand(2, WIDTH), value[0]))
        else:
            file[key] = value
    file = renamed(file, (r'^patch_embed\.', 'beit3.vision_embed.'),
                   ('^cls_token', 'beit3.vision_embed.cls_token'),
                   (r'^blocks\.', 'beit3.encoder.layers.'), (r'mlp\.norm', 'ffn.A.ffn_layernorm'),
                   (r'\.norm1', '.self_attn_layer_norm.A'), (r'\.norm2', '.final_layer_norm.A'),
                   (r'attn\.norm', 'self_attn.inner_attn_ln.A'),
                   (r'\.attn\.proj', '.self_attn.out_proj.A'),
                   (r'\.attn\.(\w)_proj', r'.self_attn.\1_proj.A'), (r'mlp\.', 'ffn.A.'))
    file |= {key.replace('.A.', '.B.'): value for key, value in file.items() if '.A.' in key}
    return file | {'beit3.text_embed.weight': torch.rand(5, WIDTH),
                   'beit3.vision_embed.mask_token': torch.rand(1, 1, WIDTH)}  # yapf: disable


def aimv2(state: State) -> State:
    return renamed(state, (r'mlp\.fc1_g', 'mlp.fc1'), (r'mlp\.fc1_x', 'mlp.fc3'),
                   (r'\.norm(\d)', r'.norm_\1'), (r'^blocks', 'trunk.blocks'),
                   (r'^norm\.', 'trunk.post_trunk_norm.'),
                   (r'^pos_embed', 'preprocessor.pos_embed'),
                   (r'^patch_embed', 'preprocessor.patchifier'))


def radio(state: State) -> State:
    file = renamed(state, (r'\.gamma', '.grandma'))
    tokens = torch.cat((file.pop('cls_token')[0], file.pop('reg_token')[0]))
    weight = file.pop('patch_embed.proj.weight').flatten(1)
    file.pop('patch_embed.proj.bias')
    file['patch_generator.embedder.weight'] = weight
    file['patch_generator.cls_token.token'] = tokens
    file['patch_generator.pos_embed'] = file.pop('pos_embed')
    file = add_prefix(file, 'radio_model.model.')
    return file | {'radio_model.summary_idxs': torch.arange(3)}


def sapiens2(state: State) -> State:
    file = renamed(state, ('reg_token', 'storage_tokens'),
                   (r'patch_embed\.proj', 'patch_embed.projection'),
                   (r'attn\.([qkv])_proj', r'attn.w\1'), (r'gamma_1', 'attn.gamma.weight'),
                   (r'mlp\.fc1', 'ffn.w12'), (r'mlp\.fc2', 'ffn.w3'), (r'\.norm(\d)', r'.ln\1'),
                   (r'^norm\.', 'ln1.'))
    return file | {'mask_token': torch.rand(1, 1, WIDTH)}


def transformers(state: State, prefix: str = '') -> State:
    """Convert names, and add the mask token and the pooling layer."""
    file = {}
    for key, value in state.items():
        if '.attn.qkv.' in key:
            for name, part in zip(('query', 'key', 'value'), value.chunk(3), strict=True):
                file[key.replace('attn.qkv', f'attention.attention.{name}')] = part
        else:
            file[key] = value
    scaled = 'blocks.0.ls1.gamma' in state
    file = renamed(
        file, ('^(cls_token|mask_token|register_tokens)$', r'embeddings.\1'),
        ('^dist_token$', 'embeddings.distillation_token'),
        ('^pos_embed$', 'embeddings.position_embeddings'),
        (r'^patch_embed\.proj', 'embeddings.patch_embeddings.projection'),
        (r'^norm\.', 'layernorm.'), (r'\.attn\.proj', '.attention.output.dense'),
        (r'ls(\d)\.gamma', r'layer_scale\1.lambda1'), (r'mlp\.w12', 'mlp.weights_in'),
        (r'mlp\.w3', 'mlp.weights_out'),
        *(() if scaled else (('norm1', 'layernorm_before'), ('norm2', 'layernorm_after'),
                             (r'mlp\.fc1', 'intermediate.dense'), (r'mlp\.fc2', 'output.dense'))),
        (r'^blocks\.', 'encoder.layer.'))  # yapf: disable
    head = {key: file.pop(key) for key in list(file) if key.startswith('head')}
    names = ('^head_dist', 'distillation_classifier'), ('^head', 'classifier')
    if 'head_dist.weight' in head:
        names = (names[0], ('^head', 'cls_classifier'))
    file['pooler.dense.weight'] = torch.rand(WIDTH, WIDTH)
    return add_prefix(file, prefix) | renamed(head, *names)


SIGLIP, OWN = 'vit_base_patch16_siglip_512', 'timm or Colonnade'
FILES = {
    'DINOv2': File('vit_small_patch14_dinov2', 'DINOv2', dinov2),
    'DINOv2 with registers': File('vit_small_patch14_reg4_dinov2', 'DINOv2',
                                  dinov2_with_registers),
    'DINOv2 giant': File('vit_giant_patch14_dinov2', 'DINOv2', dinov2_giant,
                         sizes=dict(mlp_ratio=4)),
    'DINOv3': File('vit_small_patch16_dinov3', 'DINOv3', dinov3),
    'DINOv3, biases': File('vit_small_patch16_dinov3_qkvb', 'DINOv3', partial(dinov3, zero=False)),
    'DINOv3, biases of 0': File('vit_small_patch16_dinov3_qkvb', 'DINOv3', dinov3),
    'DINOv3 plus': File('vit_small_plus_patch16_dinov3', 'DINOv3', dinov3),
    'DINO': File('vit_small_patch16_224', OWN, dict),
    'DeiT': File('deit_small_patch16_224', OWN, dict, 'model', 5),
    'DeiT distilled': File('deit_small_distilled_patch16_224', OWN, dict, 'model', 5),
    'DeiT-III': File('deit3_small_patch16_224', OWN, layer_scale_as_parameters, 'model',
                     5),
    'MAE': File('vit_base_patch16_224', OWN, dict, 'model'),
    'MAE with decoder': File('vit_base_patch16_224', 'MAE with its decoder', with_decoder, 'model',
                             timm_reads=False),
    'CLIP': File('vit_base_patch16_clip_224', 'CLIP', partial(with_text, 'visual.', clip_tower),
                 None, 5),
    'OpenCLIP, SigLIP': File(SIGLIP, 'OpenCLIP', partial(with_text, 'visual.trunk.', dict)),
    'EVA-02': File('eva02_base_patch14_448', 'EVA', eva02, 'module', 5),
    'EVA-02, small': File('eva02_small_patch14_336', 'EVA', eva02, 'model', 5),
    'EVA-02, masked': File('eva02_base_patch14_224', 'EVA', partial(masked, eva02), 'module'),
    'EVA': File('eva_giant_patch14_224', OWN, dict, 'model', 5),
    'EVA, masked': File('eva_giant_patch14_224', 'EVA', partial(masked, dict), 'module'),
    'EVA-CLIP': File('eva02_base_patch16_clip_224', 'EVA-CLIP',
                     partial(with_text, 'visual.', eva02), None, 5),
    'PE core': File('vit_pe_core_base_patch16_224', 'Perception Encoder',
                    partial(with_text, 'visual.', perception_encoder), None, 5),
    'PE spatial': File('vit_pe_spatial_base_patch16_512', 'Perception Encoder',
                       perception_encoder),
    'TIPSv2': File('vit_base_patch14_reg1_tipsv2', 'TIPSv2',
                   partial(with_text, 'vision_encoder.', dinov2_with_registers)),
    'BEiT-3': File('beit3_base_patch16_224', 'BEiT-3', beit3, 'model', 5),
    'AIMv2': File('aimv2_large_patch14_224', 'AIMv2', aimv2),
    'RADIO': File('vit_base_patch16_radio_v3', 'RADIO', radio, 'state_dict'),
    'Sapiens2': File('vit_base_patch16_sapiens2', 'Sapiens2', sapiens2,
                     sizes=dict(num_kv_heads=[2, 1, 2])),
    'I-JEPA': File('vit_base_patch16_gap_224', OWN,
                   partial(add_prefix, prefix='module.'), 'encoder'),
}  # yapf: disable
IN_TIMM = [
    'vit_base_patch16_rope_mixed_ape_224', 'vit_base_patch16_rope_reg1_gap_256', SIGLIP,
    'vit_base_patch16_gap_224', 'vit_base_patch16_siglip_gap_512', 'deit3_base_patch16_224',
    'vit_small_patch16_dinov3_qkvb', 'eva02_base_patch14_448', 'vit_small_patch16_18x2_224'
]
FILES |= {
    f'timm {model}': File(model, OWN, dict, classes=5 * ('gap' not in model))
    for model in IN_TIMM
}
