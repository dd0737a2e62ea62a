"""State dicts of one tiny XCiT in each published layout, made by hand from timm's names."""
from __future__ import annotations

import torch
from timm.models.xcit import Xcit
from torch import Tensor

from colonnade.backbones import XCiT

State = dict[str, Tensor]
TINY = dict(embed_dim=16, depth=3, num_heads=2, patch_size=16)


def timm_state() -> State:
    torch.manual_seed(0)
    model = Xcit(num_classes=5, **TINY)
    return {
        key: torch.rand_like(v) if v.is_floating_point() else v
        for key, v in model.state_dict().items()
    }


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


def ours_state() -> State:
    needed = XCiT(TINY).state_dict()
    return {key: value for key, value in timm_state().items() if key in needed}


def detector_state() -> State:
    """A whole model that our training saved."""
    state = {f'backbone.{key}': value for key, value in ours_state().items()}
    return state | {
        'neck.stride4.0.weight': torch.rand(2),
        'decode_head.conv_seg.bias': torch.rand(2)
    }
