"""The model of a config with one of our backbones in the place of its backbone."""
from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from colonnade.backbones import BACKBONES
from colonnade.common.errors import UserCodeError, UserError
from colonnade.models.feature_maps import Map, levels_of, maps_of, read_by, whole
from colonnade.settings.known_settings import names_of_type
from colonnade.weights.pretrained import IMAGENET

from .backbone_names import Backbone
from .heads import all_read, fit_heads, scale_strides
from .notes import Notes

Model = dict[str, Any]

#: backbones that are more than one, and the reasons
MARRIED = {
    'UNet': 'its decoder is a part of the backbone, level by level',
    'SSDVGG': 'its levels beyond stride 16 are layers of VGG, and its head has their widths',
    **dict.fromkeys(
        ('BiSeNetV1', 'BiSeNetV2', 'FastSCNN', 'ICNet', 'CGNet', 'ERFNet', 'STDCNet',
         'STDCContextPathNet', 'DDRNet', 'PIDNet'),
        'its heads read the branches that it fuses itself, not levels of one backbone'),
}  # yapf: disable


def with_backbone(model: Model, replacement: Backbone, notes: Notes) -> Model:
    """Return a model with another backbone, and all that follows in neck, heads and preprocessor.

    Args:
        model: Of a config of mmdet or mmseg; not changed.
        replacement: Takes the place of the backbone.
        notes: Takes the reasons, and what is not decided.

    Raises:
        ValueError: If no columnar backbone can take that place.
    """
    refuse(model)
    necks = listed(model.get('neck'))
    resampling = []
    if necks and 'in_channels' not in necks[0]:  # it only resamples maps, as our pyramid does
        resampling = [necks.pop(0)]
        notes.reason(
            'model', f'{resampling[0]["type"]} resampled the maps of '
            f'{model["backbone"]["type"]}; ColumnarPyramid does so here.')
    theirs = maps_of(model['backbone'], *resampling)
    used = read_by(necks[0], theirs) if necks else all_read(model, len(theirs))
    if necks and needs_unread_maps(necks[0], used, theirs):
        used = list(range(len(theirs)))
        notes.leave(
            f'{necks[0]["type"]} counts on maps that it does not read, so the pyramid makes '
            'them, too: training in several processes needs find_unused_parameters = True')
    strides = strides_of([theirs[index].stride for index in used], replacement)
    model = deepcopy(model)
    model['backbone'] = replacement.config(len(theirs), used)
    reader = necks[0]['type'] if necks else 'The heads'
    read = [f'{theirs[i].width} channels at stride {theirs[i].stride:g}' for i in used]
    notes.reason(
        'model', f'{reader} read {", ".join(read)}. Now it is {replacement.settings["embed_dim"]} '
        f'channels each, at stride {", ".join(f"{stride:g}" for stride in strides)}.')
    model['neck'], after = new_neck(necks, used, strides, replacement)
    if necks:
        before = levels_of(necks[0], theirs)
        if [level.width for level in before] != [level.width for level in after]:
            fit_heads(model, before, after, list(range(len(before))), notes)
    else:
        fit_heads(model, theirs, after, used, notes)
    settle_strides(model, theirs[used[0]].stride, strides[0], notes)
    set_preprocessor(model, replacement, notes)
    drop_weights(model, replacement, notes)
    return model


def needs_unread_maps(neck: Model, used: list[int], maps: list[Map]) -> bool:
    """Return True if a neck cannot be run on the maps alone that its output depends on."""
    if len(used) == len(maps) or not isinstance(neck['in_channels'], (list, tuple)):
        return False
    widths = [maps[index].width for index in used]
    try:
        levels_of(
            dict(without_first(neck, used[0]), in_channels=widths), [maps[index] for index in used])
    except UserCodeError:
        return True
    return False


def refuse(model: Model) -> None:
    """Raise a ValueError for a model that no backbone of ours fits into."""
    if not isinstance(model.get('backbone'), dict):
        raise UserError(f'{model.get("type")} has no model.backbone that could be replaced')
    kind = str(model['backbone'].get('type')).rpartition('.')[2]
    if kind in BACKBONES:
        raise UserError(f'{kind} is one of ours already: change backbone.arch, and the widths '
                        'and strides that colonnade train then asks for')
    inner = str((model['backbone'].get('backbone_cfg') or {}).get('type')).rpartition('.')[2]
    for name in (kind, inner):
        if name in MARRIED:
            raise UserError(f'{name} cannot be replaced: {MARRIED[name]}')
    if any('rfp_backbone' in neck for neck in listed(model.get('neck'))):
        raise UserError(f'{kind} cannot be replaced: the neck runs a second one that takes the '
                        "neck's own levels")
    shared = (model.get('roi_head') or {}).get('shared_head')
    if shared:
        raise UserError(f'{kind} cannot be replaced: roi_head.shared_head ({shared["type"]}) is '
                        'its last stage. Take a config with an FPN')


def listed(neck: Any) -> list[Model]:
    """Return necks in their order."""
    necks = neck if isinstance(neck, (list, tuple)) else [neck]
    return deepcopy([each for each in necks if each])


def strides_of(theirs: Sequence[float], replacement: Backbone) -> list[float]:
    """Return the strides of the pyramid that come nearest.

    Raises:
        ValueError: If they decrease, or are not within a factor 4 of the patch size.
    """
    if list(theirs) != sorted(theirs):
        raise UserError(f'maps of the strides {theirs} become finer: the backbone is an encoder '
                        'and a decoder, and no backbone alone can take its place')
    patch = replacement.settings['patch_size']
    steps = [round(math.log2(stride / patch)) for stride in theirs]
    if any(abs(step) > 2 for step in steps):
        raise UserError(f'the heads need maps of the strides {list(theirs)}, and a pyramid on '
                        f'patches of {patch} has {patch / 4:g} to {patch * 4}: take a backbone of '
                        'other patches')
    return [whole(patch * 2.**step) for step in steps]


def new_neck(necks: list[Model], used: list[int], strides: list[float],
             replacement: Backbone) -> tuple[Any, list[Map]]:
    """Return the neck, and the maps that leave the first of theirs."""
    width, patch = replacement.settings['embed_dim'], replacement.settings['patch_size']
    maps = [Map(width, stride) for stride in strides]
    pyramid = dict(type='ColumnarPyramid', in_channels=width, stride=patch)
    if strides != [4, 8, 16, 32]:
        pyramid['out_strides'] = strides
    resampled = [] if set(strides) == {patch} else [pyramid]
    if not necks:
        return (resampled[0] if resampled else None), maps
    several = isinstance(necks[0]['in_channels'], (list, tuple))
    widths = type(necks[0]['in_channels'])([width] * len(used)) if several else width
    first = dict(without_first(necks[0], used[0]), in_channels=widths)
    chain = [*resampled, first, *necks[1:]]
    if resampled and several and 'out_channels' in (names_of_type(first['type']) or ()):
        pyramid['fpn'] = {key: value for key, value in first.items() if key != 'in_channels'}
        chain = [pyramid, *necks[1:]]
    return (chain if chain[1:] else chain[0]), levels_of(first, maps)


def without_first(neck: Model, number: int) -> Model:
    """Return a neck that is not given its first maps any more, since it does not read them."""
    levels = {
        key: neck[key] - number
        for key in ('start_level', 'end_level') if (neck.get(key) or 0) > 0
    }
    return neck | levels


def settle_strides(model: Model, theirs: float, ours: float, notes: Notes) -> None:
    """Scale what heads and preprocessor state in pixels of their strides."""
    ratio = ours / theirs
    if ratio == 1:
        return
    scale_strides(model, ratio, 'model', notes)
    preprocessor = model.get('data_preprocessor') or {}
    for part in (preprocessor, *(preprocessor.get('batch_augments') or [])):
        key = 'pad_size_divisor' if part is preprocessor else 'size_divisor'
        if part.get(key, 1) > 1:
            part[key] = math.ceil(part[key] * ratio)
    notes.reason('model', f'Strides are {ratio:g} of theirs, because of the patches.')


def set_preprocessor(model: Model, replacement: Backbone, notes: Notes) -> None:
    """Normalise images as the backbone's weights need."""
    preprocessor = model.get('data_preprocessor')
    if not isinstance(preprocessor, dict) or 'data_preprocessor' in preprocessor:
        notes.leave('model.data_preprocessor is not one preprocessor: set mean, std and bgr_to_rgb '
                    f'for {replacement.name} yourself')
        return
    known = replacement.normalisation
    if known is None:
        notes.leave(
            f'weights of {replacement.name} differ in mean and std of images: those of ImageNet '
            'are set. Name the backbone with the tag of its weights to settle that')
    mean, std = known or IMAGENET
    before = (preprocessor.get('mean'), preprocessor.get('std'), preprocessor.get('bgr_to_rgb'))
    preprocessor |= dict(mean=list(mean), std=list(std), bgr_to_rgb=True)
    preprocessor.pop('rgb_to_bgr', None)
    if before != (preprocessor['mean'], preprocessor['std'], True):
        notes.reason('model', "Mean and std are those of the backbone's weights, of red, green and "
                     'blue.')


def drop_weights(model: Model, replacement: Backbone, notes: Notes) -> None:
    """Leave out weights of the backbone that was there, and say how to name others."""
    if model.get('pretrained') is not None:
        model['pretrained'] = None
    if model.get('init_cfg'):
        notes.reason('model', 'init_cfg loaded weights of the whole model.')
        model['init_cfg'] = None
    for key in model:
        if key.startswith('teacher'):
            notes.leave(f'model.{key} is left as it is')
    notes.reason(
        'model', 'To start from pretrained weights, add to backbone: '
        f"init_cfg=dict(type='Pretrained', checkpoint={replacement.checkpoint!r}).")
