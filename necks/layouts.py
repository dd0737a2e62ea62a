"""How files of detectors name the tensors of pyramids, and of the trunk and heads around them."""
from __future__ import annotations

import math

from colonnade.weights.layouts import Layout, Rules, rename
from colonnade.weights.state_dicts import State, WeightsError

from .pyramid import level_name

#: to mmdet's MaskRCNN with RPNHead of two convolutions and Shared4Conv1FCBBoxHead
DETECTRON2: Rules = (
    (r'^backbone\.net\.', 'backbone.'),
    (r'^backbone\.simfp_(\d+)\.', lambda m: f'neck.{level_name(2**int(m[1]))}.'),
    (r'^proposal_generator\.rpn_head\.conv\.conv(\d+)\.', r'rpn_head.rpn_conv.\1.conv.'),
    (r'^proposal_generator\.rpn_head\.objectness_logits\.', 'rpn_head.rpn_cls.'),
    (r'^proposal_generator\.rpn_head\.anchor_deltas\.', 'rpn_head.rpn_reg.'),
    (r'^roi_heads\.box_predictor\.cls_score\.', 'roi_head.bbox_head.fc_cls.'),
    (r'^roi_heads\.box_predictor\.bbox_pred\.', 'roi_head.bbox_head.fc_reg.'),
    (r'^roi_heads\.box_head\.', 'roi_head.bbox_head.'),
    (r'^roi_heads\.mask_head\.', 'roi_head.mask_head.'),
    (r'\.bbox_head\.conv(\d+)\.', lambda m: f'.bbox_head.shared_convs.{int(m[1]) - 1}.'),
    (r'\.bbox_head\.fc(\d+)\.', lambda m: f'.bbox_head.shared_fcs.{int(m[1]) - 1}.'),
    (r'\.mask_head\.mask_fcn(\d+)\.', lambda m: f'.mask_head.convs.{int(m[1]) - 1}.'),
    (r'\.mask_head\.deconv\.', '.mask_head.upsample.'),
    (r'\.mask_head\.predictor\.', '.mask_head.conv_logits.'),
    (r'^(roi_head\..+)\.norm\.', r'\1.ln.'),
)  # yapf: disable


def remap_vitdet_detectron2(state: State) -> State:
    """detectron2's ViTDet, a Mask R-CNN.

    It names a convolution and its norm ``N.weight`` and ``N.norm.weight``; mmdet and we have
    ``N.conv.weight``. Its trunk has no class token. The position that pre-training left for one is
    not used and dropped. Which blocks attend within windows is not in the file.

    Raises:
        WeightsError: If the trunk's attention has relative positions.
    """
    if any('.attn.rel_pos_' in key for key in state):
        raise WeightsError('the file holds a ViTDet with relative positions (attn.rel_pos_h, '
                           'attn.rel_pos_w), and no trunk here has them: without them, it would '
                           'compute something else')
    named = {}
    for key, value in state.items():
        layer = key.removesuffix('.weight')
        is_conv = key.endswith('.weight') and f'{layer}.norm.weight' in state
        named[f'{layer}.conv.weight' if is_conv else key] = value
    renamed = rename(named, DETECTRON2)
    positions = renamed.get('backbone.pos_embed')  # (1, N, C) or (1, 1 + N, C) of a square grid
    if positions is not None and math.isqrt(positions.shape[1])**2 != positions.shape[1]:
        renamed['backbone.pos_embed'] = positions[:, 1:]
    return renamed


LAYOUTS = (Layout(
    'ViTDet, detectron2', ('backbone.net.', 'backbone.simfp_'),
    remap_vitdet_detectron2,
    published_model=True), )
