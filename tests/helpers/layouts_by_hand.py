"""State dicts of tiny backbones in each published format, converted by hand from timm's."""
from __future__ import annotations

from collections.abc import Callable

import torch
from timm.models.cait import Cait
from timm.models.mlp_mixer import Affine, MlpMixer, ResBlock
from timm.models.xcit import Xcit
from torch import Tensor, nn

from colonnade.backbones import CaiT, ColumnarBackbone, ResMLP, XCiT

State = dict[str, Tensor]
TINY = dict(embed_dim=16, depth=3, num_heads=2, patch_size=16)
TINY_CAIT = dict(embed_dim=16, depth=3, num_heads=2, img_size=48)
TINY_RESMLP = dict(embed_dim=16, depth=3, img_size=48)


def randomised(model: nn.Module) -> State:
    torch.manual_seed(0)
    return {
        key: torch.rand_like(v) if v.is_floating_point() else v
        for key, v in model.state_dict().items()
    }


def timm_state() -> State:
    return randomised(Xcit(num_classes=5, **TINY))


def cait_state() -> State:
    """Return a state dict, whose names are those of timm and the authors."""
    return randomised(Cait(num_classes=5, **TINY_CAIT))


def resmlp_timm_state() -> State:
    arch = dict(embed_dim=16, num_blocks=3, img_size=48, mlp_ratio=4)
    return randomised(MlpMixer(num_classes=5, block_layer=ResBlock, norm_layer=Affine, **arch))


def resmlp_original_state() -> State:
    state = {}
    for key, value in resmlp_timm_state().items():
        for theirs, original in (('stem.', 'patch_embed.'), ('linear_tokens.', 'attn.'),
                                 ('mlp_channels.', 'mlp.'), ('.ls', '.gamma_')):
            key = key.replace(theirs, original)
        state[key] = value.flatten() if key.endswith(('alpha', 'beta')) else value
    return state


def resmlp_dino_state() -> State:
    return {k: v for k, v in resmlp_original_state().items() if not k.startswith('head.')}


def original_state() -> State:
    state = {}
    for key, value in timm_state().items():
        if '.attn.q.' in key:
            parts = [timm_state()[key.replace('.q.', f'.{name}.')] for name in 'qkv']
            state[key.replace('.q.', '.qkv.')] = torch.cat(parts)
        elif not ('.attn.k.' in key or '.attn.v.' in key):
            state[key.replace('pos_embed.', 'pos_embeder.')] = value
    return state


def dino_state() -> State:
    return {key: value for key, value in original_state().items() if not key.startswith('head.')}


def mmpretrain_state() -> State:
    state = {}
    for key, value in timm_state().items():
        parts = key.split('.')
        if parts[0] == 'patch_embed':
            parts[2:4] = [str(int(parts[2]) // 2), ('conv', 'bn')[int(parts[3])]]
        for old, new in (('blocks', ['xca_layers']), ('cls_attn_blocks', ['ca_layers']),
                         ('token_projection', ['token_projection',
                                               'conv']), ('mlp', ['ffn',
                                                                  'layers']), ('fc1', ['0', '0']),
                         ('fc2', ['1']), ('conv1', ['conv1', 'conv']), ('conv2', ['conv2',
                                                                                  'conv'])):
            if old in parts:
                parts[parts.index(old):parts.index(old) + 1] = new
        name = '.'.join(parts).replace('local_mp.bn', 'local_mp.conv1.bn')
        state['head.fc' + name[4:] if parts[0] == 'head' else f'backbone.{name}'] = value
    return state


def backbone_for(make: Callable, **kwargs: object) -> ColumnarBackbone:
    """Build the backbone of the weights of ``make``."""
    if make.__name__.startswith('cait'):
        return CaiT(TINY_CAIT, **kwargs)
    if make.__name__.startswith('resmlp'):
        return ResMLP(TINY_RESMLP, **kwargs)
    return XCiT(TINY, **kwargs)


def ours_state(make: Callable = timm_state) -> State:
    """Return the expected tensors under Colonnade's names for the backbone of ``make``."""
    in_timms = {CaiT: cait_state, ResMLP: resmlp_timm_state, XCiT: timm_state}
    backbone = backbone_for(make)
    return {
        key: value
        for key, value in in_timms[type(backbone)]().items() if key in backbone.state_dict()
    }


def cait_ours_state() -> State:
    return ours_state(cait_state)


def resmlp_ours_state() -> State:
    return ours_state(resmlp_timm_state)


def detector_state() -> State:
    """A whole model that our training saved."""
    state = {f'backbone.{key}': value for key, value in ours_state().items()}
    return state | {
        'neck.stride4.0.weight': torch.rand(2),
        'decode_head.conv_seg.bias': torch.rand(2)
    }


def resmlp_segmenter_state() -> State:
    """A whole model that our training saved."""
    state = {f'backbone.{key}': value for key, value in resmlp_ours_state().items()}
    return state | {'decode_head.conv_seg.bias': torch.rand(2)}


LAYOUTS = [
    timm_state, original_state, dino_state, mmpretrain_state, ours_state, detector_state,
    cait_state, cait_ours_state, resmlp_timm_state, resmlp_original_state, resmlp_dino_state,
    resmlp_ours_state, resmlp_segmenter_state
]
