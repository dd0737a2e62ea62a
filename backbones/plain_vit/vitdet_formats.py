"""Published weights of ViTDet, Mask R-CNN and Cascade Mask R-CNN, in detectron2's names."""
from __future__ import annotations

import re
from typing import Any

from colonnade.weights.formats import CheckpointFormat, Rules, rename_keys
from colonnade.weights.state_dicts import State, add_prefix, strip_prefix

from .checkpoint_formats import convert_eva

#: anchors and the normalization of images, which configs define
UNUSED = ('proposal_generator.anchor_generator.', 'pixel_mean', 'pixel_std')
NUM_STAGES = 3  # of the cascade
BACKBONE: Rules = (
    (r'^backbone\.net\.', 'backbone.'),
    (r'^backbone\.simfp_(\d)\.', lambda match: f'neck.stride{2 ** int(match[1])}.'),
)
HEADS: Rules = (
    (r'^proposal_generator\.rpn_head\.conv\.conv(\d)\.', r'rpn_head.rpn_conv.\1.conv.'),
    (r'^proposal_generator\.rpn_head\.conv\.', 'rpn_head.rpn_conv.'),
    (r'^proposal_generator\.rpn_head\.objectness_logits\.', 'rpn_head.rpn_cls.'),
    (r'^proposal_generator\.rpn_head\.anchor_deltas\.', 'rpn_head.rpn_reg.'),
    (r'^roi_heads\.(box|mask)_(?:head|predictor)\.', r'roi_head.\1_head.'),
    (r'^roi_head\.box_head\.', 'roi_head.bbox_head.'),
    (r'\.(conv|mask_fcn)(\d)\.', lambda match: ('.shared_convs' if match[1] == 'conv' else '.convs')
     + f'.{int(match[2]) - 1}.'),
    (r'\.fc(\d)\.', lambda match: f'.shared_fcs.{int(match[1]) - 1}.'),
    (r'\.cls_score\.', '.fc_cls.'),
    (r'\.bbox_pred\.', '.fc_reg.'),
    (r'\.deconv\.', '.upsample.'),
    (r'\.mask_head\.predictor\.', '.mask_head.conv_logits.'),
)  # yapf: disable


def name_convolutions(state: State) -> State:
    """Rename convolutions that have a norm inside, and these norms, as in mmcv."""
    named = {}
    for key, value in state.items():
        layer, _, name = key.rpartition('.')
        if layer.endswith('.norm') and f'{layer.removesuffix(".norm")}.weight' in state:
            is_neck = key.startswith('neck.')
            key = key if is_neck else f'{layer.removesuffix("norm")}ln.{name}'
        elif f'{layer}.norm.{name}' in state:
            key = f'{layer}.conv.{name}'
        named[key] = value
    return named


def convert_vitdet(state: State) -> State:
    """Convert the keys of detectron2's ViTDet to those of mmdet's detectors.

    A cascade has one mask head in detectron2, and one for each stage in mmdet, which averages their
    masks: all get the same weights.
    """
    state = {key: value for key, value in state.items() if not key.startswith(UNUSED)}
    state = rename_keys(state, BACKBONE)
    own = {key: value for key, value in state.items() if key.startswith('backbone.')}
    positions = own.get('backbone.pos_embed')
    if positions is not None and positions.ndim == 3:  # the first is of a class token
        own['backbone.pos_embed'] = positions[:, 1:]
    others = {key: value for key, value in state.items() if key not in own}
    named = own | name_convolutions(rename_keys(others, HEADS))
    if not any(key.startswith('roi_head.bbox_head.0.') for key in named):
        return named
    cascade: State = {}
    for key, value in named.items():
        if key.startswith('roi_head.mask_head.'):
            name = key.removeprefix('roi_head.mask_head.')
            cascade |= {f'roi_head.mask_head.{i}.{name}': value for i in range(NUM_STAGES)}
        else:
            cascade[key] = value
    return cascade


def infer_relative_positions(state: State, sizes: dict[str, int]) -> dict[str, Any]:
    """Infer the arguments of a backbone with relative positions; empty if it has none.

    Args:
        state: Tensors of the backbone.
        sizes: Width, depth and patch size.
    """
    tables = {
        int(match[1]): value
        for key, value in state.items()
        if (match := re.fullmatch(r'blocks\.(\d+)\.attn\.rel_pos_h', key))
    }
    if not tables:
        return {}
    sides = {index: (len(table) + 1) // 2 for index, table in tables.items()}
    longest = max(sides.values())
    windows = {side for side in sides.values() if side < longest}
    width = sizes['embed_dim']
    arch = dict(
        embed_dim=width,
        depth=sizes['depth'],
        num_heads=width // tables[0].shape[1],
        class_token=False)
    arguments: dict[str, Any] = dict(arch=arch, rel_pos_size=longest, pos_embed_resize='bicubic')
    if windows:
        global_blocks = [index for index, side in sides.items() if side == longest]
        arguments |= dict(
            window_size=max(windows), global_blocks=global_blocks, window_padding='tokens')
    return arguments


def convert_eva02(state: State) -> State:
    """Convert the keys of EVA-02's detectors as :func:`convert_vitdet` does; drop rotary tables."""
    named = convert_vitdet({key: value for key, value in state.items() if '.rope' not in key})
    own = convert_eva(strip_prefix(named, 'backbone.'))
    others = {key: value for key, value in named.items() if not key.startswith('backbone.')}
    return add_prefix(own, 'backbone.') | others


def convert_vit_adapter(state: State) -> State:
    """Convert the keys of the authors' ViT-Adapter; its convolutional branch is in the neck.

    Files of backbones with a class token have it; others have only its position, which is dropped.
    """
    state = rename_keys(state, (
        (r'^neck\.(lateral|fpn)_convs\.', r'neck.fpn.\1_convs.'),
        (r'^backbone\.(level_embed|spm\.|interactions\.|up\.|norm[1-4]\.)', r'neck.\1'),
        (r'^(backbone\.blocks\.\d+)\.gamma([12])$', r'\1.ls\2.gamma'),
    ))  # yapf: disable
    if 'backbone.cls_token' not in state and 'backbone.pos_embed' in state:
        state['backbone.pos_embed'] = state['backbone.pos_embed'][:, 1:]
    return state


VITDET_FORMATS = (
    CheckpointFormat(
        'ViTDet, detectron2', ('backbone.net.blocks.', 'backbone.simfp_2.'),
        convert_vitdet,
        without=('backbone.net.cls_token', 'backbone.net.rope'),
        published_model=True,
        dropped='position of the class token'),
    CheckpointFormat(
        'EVA-02 detector, detectron2', ('backbone.net.rope_win.', 'backbone.net.rope_glb.'),
        convert_eva02,
        published_model=True,
        dropped='position of the class token, rotary tables'),
    CheckpointFormat(
        'ViT-Adapter, original', ('backbone.spm.', 'backbone.interactions.'),
        convert_vit_adapter,
        published_model=True,
        dropped='position of the class token'),
)
