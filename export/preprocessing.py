"""How the runtime is to prepare images, from a config's test pipeline and data preprocessor."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmdet.models import DetDataPreprocessor
from torch import nn

from colonnade.inference import Model
from colonnade.inference.test_pipeline import steps_for_arrays
from colonnade.settings.pipeline_steps import kind_of_step, loads_annotations

from .graphs import ExportError, ImageSizeLimits

Values = dict[str, Any]


def preprocess_of(model: Model, sides: ImageSizeLimits) -> Values:
    """What ``model.json`` says of preparing images; the runtime's ``Preprocess`` reads it.

    Args:
        model: With its config.
        sides: Heights and widths that the graphs take.

    Raises:
        ExportError: If the pipeline or the data preprocessor does what the runtime does not.
    """
    given = model.module.data_preprocessor
    three = dict(mean=[0., 0., 0.], std=[1., 1., 1.])
    if given._enable_normalize:
        three = {key: getattr(given, key).flatten().tolist() for key in three}
    for key, values in three.items():
        if len(values) != 3:
            raise ExportError(f'data_preprocessor.{key} must have three values, got {values}')
    return dict(
        steps=[step for given in steps_for_arrays(model.cfg) for step in exported_step(given)],
        channels='RGB' if given._channel_conversion else 'BGR',
        **three,
        pad=padding_of(given),
        multiple=sides.multiple,
        least=sides.least)


def padding_of(given: nn.Module) -> Values | None:
    """How a data preprocessor pads normalised images.

    Raises:
        ExportError: If it is neither mmdet's nor mmseg's.
    """
    if isinstance(given, DetDataPreprocessor):
        return dict(multiple=given.pad_size_divisor, value=float(given.pad_value))
    if type(given).__name__ != 'SegDataPreProcessor':  # whose class brings mmseg
        raise ExportError(f'data_preprocessor {type(given).__name__} cannot be exported: there are '
                          'DetDataPreprocessor and SegDataPreProcessor')
    test_cfg = given.test_cfg
    if not test_cfg:
        return None
    size = test_cfg.get('size')
    return dict(
        size=list(size) if size else None,
        multiple=test_cfg.get('size_divisor') or 1,
        value=float(given.pad_val))


def exported_step(step: Mapping[str, Any]) -> list[Values]:
    """A step of a test pipeline as the runtime has it; none of a step that changes no image.

    Raises:
        ExportError: If the runtime has no such step.
    """
    kind = kind_of_step(dict(step))
    if kind == 'LoadImageFromNDArray':
        expect(step, to_float32=False)
        return []
    if loads_annotations(dict(step)) or kind in ('PackDetInputs', 'PackSegInputs'):
        return []
    if kind == 'Resize':
        return [resize_step(step)]
    if kind == 'Pad':
        return [pad_step(step)]
    raise ExportError(f'{kind} of the test pipeline cannot be exported: the runtime has Resize and '
                      'Pad')


def expect(step: Mapping[str, Any], **settings: Any) -> None:
    """Raise an ExportError where a step has another setting, which the runtime does not have."""
    for key, value in settings.items():
        if step.get(key, value) != value:
            raise ExportError(f'{kind_of_step(dict(step))} of the test pipeline cannot be exported '
                              f'with {key}={step[key]!r}: the runtime has {value!r}')


def resize_step(step: Mapping[str, Any]) -> Values:
    """``Resize``; its scales are width and height."""
    expect(step, interpolation='bilinear', backend='cv2')
    found: Values = dict(type='resize', keep_ratio=bool(step.get('keep_ratio', False)))
    for name, key in (('scale', 'scale'), ('scale_factor', 'factor')):
        value = step.get(name)
        if value:
            found[key] = [value] * 2 if isinstance(value, (int, float)) else list(value)
    return found


def pad_step(step: Mapping[str, Any]) -> Values:
    """``Pad``, whose size is width and height, and whose colour is blue, green and red."""
    expect(step, padding_mode='constant')
    value = step.get('pad_val', 0)
    value = value.get('img', 0) if isinstance(value, Mapping) else value
    size = step.get('size')
    return dict(
        type='pad',
        size=list(size)[::-1] if size else None,
        multiple=step.get('size_divisor') or 1,
        square=bool(step.get('pad_to_square', False)),
        value=[value] * 3 if isinstance(value, (int, float)) else list(value)[::-1])
