"""Published heads whose files lack the frozen backbone: PMT's decoder, linear heads of DINO."""
from __future__ import annotations

from mmengine.logging import print_log
from mmengine.model import BaseModule

from colonnade.weights.downloads import fetch
from colonnade.weights.formats import CheckpointFormat, Rules, register_formats, rename_keys
from colonnade.weights.pretrained import get_pretrained
from colonnade.weights.state_dicts import (State, WeightsError, find_mismatches, format_mismatches,
                                           get_state_dict)

PMT: Rules = (
    (r'^network\.bn\.', 'decoder.bn.'),
    (r'^network\.decoder\.(q|class_head|mask_head|upscale)\b', r'\1'),
    (r'^network\.decoder\.', 'decoder.'),
    (r'\.attention\.([qkv])_proj\.', r'.attn.\1_proj.'),
    (r'\.attention\.o_proj\.', '.attn.proj.'),
    (r'\.layer_scale([12])\.lambda1$', r'.gamma_\1'),
    (r'\.mlp\.up_proj\.', '.mlp.fc1.'),
    (r'\.mlp\.down_proj\.', '.mlp.fc2.'),
)
LINEAR: Rules = (
    (r'^(decode_head\.bn|segmentation_model\.1\.batchnorm_layer)\.', 'norm.'),
    (r'^(decode_head\.conv_seg|segmentation_model\.1\.conv)\.', 'conv_seg.'),
)


def convert_pmt(state: State) -> State:
    """Convert the keys of a published file to those of :class:`.PMTHead`.

    Files may have the frozen backbone, below ``network.encoder``, which is not needed.
    """
    state = {
        key: value
        for key, value in state.items() if key.startswith(('network.decoder.', 'network.bn.'))
        and key != 'network.decoder.attn_mask_probs'  # how far the training was
    }
    return rename_keys(state, PMT)


def convert_linear(state: State) -> State:
    """Convert the keys of DINOv2's and DINOv3's heads to those of :class:`.LinearHead`."""
    return rename_keys(state, LINEAR)


def reject_head(state: State) -> State:
    """Raise a WeightsError that explains how to load a file with a head alone."""
    raise WeightsError(
        'it has a head but no backbone: set model.backbone.init_cfg to the backbone weights, '
        "and init_cfg of model.panoptic_head or model.decode_head to dict(type='Pretrained', "
        'checkpoint=...) with this file')


PMT_DECODER = CheckpointFormat('PMT decoder, original', ('network.decoder.lateral_projections.', ),
                               reject_head)
DINOV2_HEAD = CheckpointFormat(
    'linear head of DINOv2', ('decode_head.bn.', 'decode_head.conv_seg.'),
    reject_head,
    without=('backbone.', ))
DINOV3_HEAD = CheckpointFormat('linear head of DINOv3', ('segmentation_model.1.batchnorm_layer.', ),
                               reject_head)
CONVERSIONS = {PMT_DECODER: convert_pmt, DINOV2_HEAD: convert_linear, DINOV3_HEAD: convert_linear}
register_formats(*CONVERSIONS)


def load_pretrained_head(head: BaseModule, *formats: CheckpointFormat) -> bool:
    """Load the published file of a head's ``init_cfg``; return False if it has none.

    Args:
        head: Head with an ``init_cfg``.
        formats: Formats of files that such a head can load.

    Raises:
        FileNotFoundError: If the file does not exist.
        WeightsError: If the file cannot be fetched or read, or does not fit.
    """
    pretrained = get_pretrained(head.init_cfg)
    if pretrained is None:
        return False
    source = str(pretrained['checkpoint'])
    original = get_state_dict(fetch(source, trust=pretrained.get('trust', False)), source)
    known = next((known for known in formats if known.matches(original)), None)
    if known is None:
        names = ' or '.join(known.name for known in formats)
        raise WeightsError(
            f'{source} is not a weights file of a {type(head).__name__} ({names}): its keys '
            f'look like {", ".join(list(original)[:4])}')
    state = CONVERSIONS[known](original)
    required = {key: value.shape for key, value in head.state_dict().items()}
    if problems := find_mismatches(state, required):
        raise WeightsError(f'{source} ({known.name}) does not fit {type(head).__name__}:\n'
                           f'{format_mismatches(problems)}')
    head.load_state_dict(state)
    print_log(f'{source}: {known.name}; {len(state)} tensors loaded', logger='current')
    return True
