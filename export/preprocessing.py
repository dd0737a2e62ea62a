"""Preprocessing of the runtime, from the test pipeline and data preprocessor of a config."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmdet.models import DetDataPreprocessor
from torch import nn

from colonnade.inference import Model
from colonnade.inference.arrays import get_array_steps
from colonnade.settings.pipeline_steps import get_step_type, is_loading_annotations

from .graphs import ExportError, ImageSizeLimits

Values = dict[str, Any]


def build_preprocess(model: Model, limits: ImageSizeLimits) -> Values:
    """Return ``preprocess`` of ``model.json``, which the runtime's ``Preprocess`` reads.

    Args:
        model: Model with its config.
        limits: Valid image sizes of the graphs.

    Raises:
        ExportError: If the runtime does not support the pipeline or the data preprocessor.
    """
    preprocessor = model.module.data_preprocessor
    bands, channels = model.bands, model.bands.num_bands if model.bands else 3
    stats = dict(mean=[0.] * channels, std=[1.] * channels)
    if 'mean' in dict(preprocessor.named_buffers()):
        stats = dict(mean=preprocessor.mean.flatten().tolist(),
                     std=preprocessor.std.flatten().tolist())  # yapf: disable
    for key, values in stats.items():
        if len(values) != channels:
            raise ExportError(f'data_preprocessor.{key} must have {channels} values, got {values}')
    # mmengine 0.10 has no public name for whether it swaps channels.
    return dict(
        steps=[
            each for step in get_array_steps(model.cfg)
            for each in convert_step(step, is_bgr=not bands)
        ],
        bands=dict(number=channels, suffixes=list(bands.suffixes)) if bands else None,
        channels='RGB' if bands or preprocessor._channel_conversion else 'BGR',
        **stats,
        pad=_get_padding(preprocessor),
        multiple=limits.multiple,
        least=limits.minimum)


def _get_padding(preprocessor: nn.Module) -> Values | None:
    """Return how a data preprocessor pads normalized images."""
    if isinstance(preprocessor, DetDataPreprocessor):
        return dict(multiple=preprocessor.pad_size_divisor, value=float(preprocessor.pad_value))
    name = type(preprocessor).__name__
    if name not in ('SegDataPreProcessor',
                    'SegBandsDataPreProcessor'):  # by name, since its class would import mmseg
        raise ExportError(f'data_preprocessor {name} cannot be exported: expected '
                          'DetDataPreprocessor or SegDataPreProcessor')
    test_cfg = preprocessor.test_cfg
    if not test_cfg:
        return None
    size = test_cfg.get('size')
    return dict(
        size=list(size) if size else None,
        multiple=test_cfg.get('size_divisor') or 1,
        value=float(preprocessor.pad_val))


def convert_step(step: Mapping[str, Any], *, is_bgr: bool = True) -> list[Values]:
    """Return a step of a test pipeline for the runtime, or nothing if it changes no image.

    Raises:
        ExportError: If the runtime does not support the step.
    """
    kind = get_step_type(dict(step))
    if kind == 'LoadImageFromNDArray':
        _require(step, to_float32=False)
        return []
    if is_loading_annotations(dict(step)) or kind in ('PackDetInputs', 'PackSegInputs'):
        return []
    if kind == 'Resize':
        _require(step, interpolation='bilinear', backend='cv2')
        resize: Values = dict(type='resize', keep_ratio=bool(step.get('keep_ratio', False)))
        for name, key in (('scale', 'scale'), ('scale_factor', 'factor')):
            if value := step.get(name):  # width and height
                resize[key] = [value] * 2 if isinstance(value, (int, float)) else list(value)
        return [resize]
    if kind == 'Pad':
        _require(step, padding_mode='constant')
        value = step.get('pad_val', 0)
        value = value.get('img', 0) if isinstance(value, Mapping) else value
        size = step.get('size')  # width and height
        pad = dict(
            type='pad',
            size=list(size)[::-1] if size else None,
            multiple=step.get('size_divisor') or 1,
            square=bool(step.get('pad_to_square', False)),
            value=[value] if isinstance(value,
                                        (int, float)) else list(value)[::-1 if is_bgr else 1])
        return [pad]
    raise ExportError(f'{kind} of the test pipeline cannot be exported: the runtime supports only '
                      'Resize and Pad')


def _require(step: Mapping[str, Any], **settings: Any) -> None:
    """Raise an ExportError if a step has a setting that the runtime does not support."""
    for key, value in settings.items():
        if step.get(key, value) != value:
            raise ExportError(
                f'{get_step_type(dict(step))} of the test pipeline cannot be exported '
                f'with {key}={step[key]!r}: the runtime supports only {value!r}')
