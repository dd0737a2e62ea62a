"""Published weights of PMT's decoder; the files lack the frozen backbone."""
from __future__ import annotations

from mmengine.logging import print_log
from mmengine.model import BaseModule

from colonnade.weights.downloads import fetch
from colonnade.weights.formats import CheckpointFormat, register_formats, rename_keys
from colonnade.weights.pretrained import get_pretrained
from colonnade.weights.state_dicts import (State, WeightsError, find_mismatches, format_mismatches,
                                           get_state_dict)


def convert_pmt(state: State) -> State:
    """Convert the keys of a published file to those of :class:`.PMTHead`.

    Files may have the frozen backbone, below ``network.encoder``, which is not needed.
    """
    state = {
        key: value
        for key, value in state.items() if key.startswith(('network.decoder.', 'network.bn.'))
        and key != 'network.decoder.attn_mask_probs'  # how far the training was
    }
    return rename_keys(state, (
        (r'^network\.bn\.', 'decoder.bn.'),
        (r'^network\.decoder\.(q|class_head|mask_head|upscale)\b', r'\1'),
        (r'^network\.decoder\.', 'decoder.'),
        (r'\.attention\.([qkv])_proj\.', r'.attn.\1_proj.'),
        (r'\.attention\.o_proj\.', '.attn.proj.'),
        (r'\.layer_scale([12])\.lambda1$', r'.gamma_\1'),
        (r'\.mlp\.up_proj\.', '.mlp.fc1.'),
        (r'\.mlp\.down_proj\.', '.mlp.fc2.'),
    ))  # yapf: disable


def reject_decoder(state: State) -> State:
    """Raise a WeightsError that explains how to load a file with a decoder alone."""
    raise WeightsError(
        'it has a decoder but no backbone: set model.backbone.init_cfg to the backbone weights, '
        "and init_cfg of model.panoptic_head or model.decode_head to dict(type='Pretrained', "
        'checkpoint=...) with this file')


FORMAT = CheckpointFormat('PMT decoder, original', ('network.decoder.lateral_projections.', ),
                          reject_decoder)
register_formats(FORMAT)


def load_pretrained_decoder(head: BaseModule) -> bool:
    """Load the published file of a head's ``init_cfg``; return False if it has none.

    Raises:
        FileNotFoundError: If the file does not exist.
        WeightsError: If the file cannot be fetched or read, or does not fit.
    """
    pretrained = get_pretrained(head.init_cfg)
    if pretrained is None:
        return False
    source = str(pretrained['checkpoint'])
    original = get_state_dict(fetch(source, trust=pretrained.get('trust', False)), source)
    if not FORMAT.matches(original):
        raise WeightsError(f'{source} has no PMT decoder: expected keys like '
                           f'network.decoder.q.weight, got {", ".join(list(original)[:4])}')
    state = convert_pmt(original)
    required = {key: value.shape for key, value in head.state_dict().items()}
    if problems := find_mismatches(state, required):
        raise WeightsError(f'{source} ({FORMAT.name}) does not fit {type(head).__name__}:\n'
                           f'{format_mismatches(problems)}')
    head.load_state_dict(state)
    print_log(f'{source}: {FORMAT.name}; {len(state)} tensors loaded', logger='current')
    return True
