"""Model config with another backbone, and with adapted neck, heads and preprocessor."""
from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from colonnade.backbones import BACKBONES
from colonnade.common.errors import UserError
from colonnade.models.feature_maps import Map, find_levels, find_maps, find_used_maps, to_integer
from colonnade.settings.known_settings import get_argument_names
from colonnade.weights.pretrained import IMAGENET

from .backbone_names import Backbone
from .config_changes import Notes
from .heads import adapt_heads, get_read_indices, scale_strides

Model = dict[str, Any]

#: backbone -> why it cannot be replaced
IRREPLACEABLE = {
    'UNet': 'its decoder is a part of the backbone, level by level',
    'SSDVGG': 'its levels beyond stride 16 are layers of VGG, and its head has their widths',
    **dict.fromkeys(
        ('BiSeNetV1', 'BiSeNetV2', 'FastSCNN', 'ICNet', 'CGNet', 'ERFNet', 'STDCNet',
         'STDCContextPathNet', 'DDRNet', 'PIDNet'),
        'its heads read the branches that it fuses itself, not levels of one backbone'),
}  # yapf: disable


def replace_backbone(model: Model, backbone: Backbone, notes: Notes) -> Model:
    """Return a model config with another backbone and everything that depends on it.

    Args:
        model: Model config of mmdet or mmseg; not modified.
        backbone: New backbone.
        notes: Notes, to which reasons and open questions are added.

    Raises:
        ValueError: If no columnar backbone can replace the present one.
    """
    _check_replaceable(model)
    necks = _list_necks(model)
    resampler = []
    if necks and 'in_channels' not in necks[0]:  # it only resamples maps, as ColumnarPyramid does
        resampler = [necks.pop(0)]
        notes.reasons['model'].append(f'{resampler[0]["type"]} resampled the feature maps of '
                                      f'{model["backbone"]["type"]}; ColumnarPyramid replaces it.')
    maps = find_maps(model['backbone'], *resampler)
    used = find_used_maps(necks[0], maps) if necks else get_read_indices(model, len(maps))
    strides = _choose_strides([maps[index].stride for index in used], backbone)
    model = deepcopy(model)
    model['backbone'] = backbone.build_config(len(maps), used)
    reader = f'{necks[0]["type"]} reads' if necks else 'The heads read'
    read = [f'{maps[i].width} channels at stride {maps[i].stride:g}' for i in used]
    notes.reasons['model'].append(
        f'{reader} {", ".join(read)}. Now these are {backbone.settings["embed_dim"]} '
        f'channels each, at stride {", ".join(f"{stride:g}" for stride in strides)}.')
    model['neck'], after = _build_neck(necks, used, strides, backbone)
    if necks:
        before = find_levels(necks[0], maps)
        if [level.width for level in before] != [level.width for level in after]:
            adapt_heads(model, before, after, list(range(len(before))), notes)
    else:
        adapt_heads(model, maps, after, used, notes)
    _set_strides(model, strides[0] / maps[used[0]].stride, notes)
    _set_preprocessor(model, backbone, notes)
    _remove_weights(model, backbone, notes)
    return model


def _check_replaceable(model: Model) -> None:
    """Raise a ValueError if the backbone of a model cannot be replaced."""
    if not isinstance(model.get('backbone'), dict):
        raise UserError(f'{model.get("type")} has no model.backbone to replace')
    name = str(model['backbone'].get('type')).rpartition('.')[2]
    if name in BACKBONES:
        raise UserError(f'{name} is already a Colonnade backbone: change backbone.arch, and the '
                        'widths and strides that colonnade check-config then reports')
    inner = str((model['backbone'].get('backbone_cfg') or {}).get('type')).rpartition('.')[2]
    for each in (name, inner):
        if each in IRREPLACEABLE:
            raise UserError(f'{each} cannot be replaced: {IRREPLACEABLE[each]}')
    if any('rfp_backbone' in neck for neck in _list_necks(model)):
        raise UserError(f'{name} cannot be replaced: the neck runs a second backbone on its levels')
    if shared := (model.get('roi_head') or {}).get('shared_head'):
        raise UserError(f'{name} cannot be replaced: roi_head.shared_head ({shared["type"]}) is '
                        'its last stage. Use a config with an FPN')


def _list_necks(model: Model) -> list[Model]:
    neck = model.get('neck')
    necks = neck if isinstance(neck, (list, tuple)) else [neck]
    return deepcopy([each for each in necks if each])


def _choose_strides(strides: Sequence[float], backbone: Backbone) -> list[float]:
    """Return the nearest strides that a pyramid on the backbone can have.

    Raises:
        ValueError: If they decrease, or are not within a factor 4 of the patch size.
    """
    if list(strides) != sorted(strides):
        raise UserError(f'strides {strides} decrease: the backbone includes a decoder, so no '
                        'columnar backbone can replace it')
    patch = backbone.settings['patch_size']
    steps = [round(math.log2(stride / patch)) for stride in strides]
    if any(abs(step) > 2 for step in steps):
        raise UserError(f'the heads need strides {list(strides)}, but a pyramid on patches of '
                        f'{patch} has {patch / 4:g} to {patch * 4}: use a backbone with another '
                        'patch size')
    return [to_integer(patch * 2.**step) for step in steps]


def _build_neck(necks: list[Model], used: list[int], strides: list[float],
                backbone: Backbone) -> tuple[Any, list[Map]]:
    """Return the neck with a pyramid, and the output levels of the first original neck."""
    width, patch = backbone.settings['embed_dim'], backbone.settings['patch_size']
    maps = [Map(width, stride) for stride in strides]
    pyramid = dict(type='ColumnarPyramid', in_channels=width, stride=patch)
    if strides != [4, 8, 16, 32]:
        pyramid['out_strides'] = strides
    pyramids = [] if set(strides) == {patch} else [pyramid]
    if not necks:
        return (pyramid if pyramids else None), maps
    in_channels = necks[0]['in_channels']
    is_list = isinstance(in_channels, (list, tuple))
    widths = type(in_channels)([width] * len(used)) if is_list else width
    first = dict(_shift_levels(necks[0], used[0]), in_channels=widths)
    chain = [*pyramids, first, *necks[1:]]
    if pyramids and is_list and 'out_channels' in (get_argument_names(first['type']) or ()):
        pyramid['fpn'] = {key: value for key, value in first.items() if key != 'in_channels'}
        chain = [pyramid, *necks[1:]]
    return (chain if chain[1:] else chain[0]), find_levels(first, maps)


def _shift_levels(neck: Model, num_removed: int) -> Model:
    """Return a neck that does not get its first, unread feature maps any more."""
    return neck | {
        key: neck[key] - num_removed
        for key in ('start_level', 'end_level') if (neck.get(key) or 0) > 0
    }


def _set_strides(model: Model, ratio: float, notes: Notes) -> None:
    """Scale the strides of heads and the padding of the preprocessor."""
    if ratio == 1:
        return
    scale_strides(model, ratio, 'model', notes)
    preprocessor = model.get('data_preprocessor') or {}
    for part in (preprocessor, *(preprocessor.get('batch_augments') or [])):
        key = 'pad_size_divisor' if part is preprocessor else 'size_divisor'
        if part.get(key, 1) > 1:
            part[key] = math.ceil(part[key] * ratio)
    notes.reasons['model'].append(
        f'Strides are multiplied by {ratio:g}, because of the patch size.')


def _set_preprocessor(model: Model, backbone: Backbone, notes: Notes) -> None:
    """Normalize images as the weights of the backbone expect."""
    preprocessor = model.get('data_preprocessor')
    if not isinstance(preprocessor, dict) or 'data_preprocessor' in preprocessor:
        notes.open_questions.append(
            'model.data_preprocessor is nested: set mean, std and bgr_to_rgb '
            f'for {backbone.name} yourself')
        return
    published = backbone.normalization
    if published is None:
        notes.open_questions.append(
            f'weights of {backbone.name} differ in mean and std of images: those of ImageNet '
            'are set. Pass the backbone with the tag of its weights to set theirs')
    mean, std = published or IMAGENET
    before = (preprocessor.get('mean'), preprocessor.get('std'), preprocessor.get('bgr_to_rgb'))
    preprocessor |= dict(mean=list(mean), std=list(std), bgr_to_rgb=True)
    preprocessor.pop('rgb_to_bgr', None)
    if before != (preprocessor['mean'], preprocessor['std'], True):
        notes.reasons['model'].append(
            "Mean and std are those of the backbone's weights, in RGB order.")


def _remove_weights(model: Model, backbone: Backbone, notes: Notes) -> None:
    """Remove the weights of the old backbone, and explain how to set those of the new one."""
    if model.get('pretrained') is not None:
        model['pretrained'] = None
    if model.get('init_cfg'):
        notes.reasons['model'].append('init_cfg loaded weights of the full model.')
        model['init_cfg'] = None
    notes.reasons['model'].append(
        'To start from pretrained weights, add to backbone: '
        f"init_cfg=dict(type='Pretrained', checkpoint={backbone.checkpoint!r}).")
