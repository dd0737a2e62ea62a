"""Pipelines of datasets: does each step find what it needs?"""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mmengine.config import Config, ConfigDict
from mmengine.registry import DATASETS, TRANSFORMS

from colonnade.common.errors import UserCodeError

from ..dataset_paths import find_datasets, iter_evaluators
from ..findings import Finding
from ..known_settings import get_setting
from ..pipeline_steps import (find_custom_steps, get_step_type, get_type_name,
                              is_loading_annotations, is_packing, iter_steps)
from ..reading import report_third_party_errors
from ..registries import find_class
from .dataset_checks import get_library

PACKING_STEPS = dict(mmdet='PackDetInputs', mmseg='PackSegInputs')


def find_pipeline_problems(cfg: Config, dataloaders: tuple[str, ...]) -> Iterator[Finding]:
    """Yield steps that are wrong or missing in the pipelines of mmdet and mmseg datasets."""
    for name, dataset in find_datasets(cfg, dataloaders):
        steps = dataset.get('pipeline') or []
        library = get_library(dataset.get('type'), DATASETS)
        if not library or not steps or not all(isinstance(step, dict) for step in steps):
            continue
        place, all_steps = f'{name}.pipeline', [*steps, *steps_around(name, cfg)]
        if not any('Load' in get_step_type(step) for step in all_steps):
            continue  # the dataset itself loads the images
        yield from _check_required_steps(cfg, place, all_steps, PACKING_STEPS[library])
        if library == 'mmdet':
            yield from _check_detector_steps(cfg, place, steps)
        yield from _check_build(place, steps)


def steps_around(name: str, cfg: Config) -> list[dict[str, Any]]:
    """Return the pipeline steps of the datasets that wrap a dataset."""
    steps, value = [], cfg
    for part in name.replace('[', '.').replace(']', '').split('.'):
        value = value[int(part)] if part.isdecimal() else value[part]
        if isinstance(value, dict) and isinstance(value.get('pipeline'), (list, tuple)):
            steps += [step for step in value['pipeline'] if isinstance(step, dict)]
    return steps


def _check_required_steps(cfg: Config, place: str, steps: list[dict[str, Any]],
                          packing_step: str) -> Iterator[Finding]:
    """Yield steps without which a pipeline, or the metric after it, fails.

    Custom steps may do the same under another name, so with them the finding is a note.
    """
    evaluator = place.partition('_')[0] + '_evaluator'
    missing = []
    if not any(map(is_packing, iter_steps(steps))):
        missing.append(
            Finding('missing-step', f'{place} does not pack its inputs', (place, ),
                    f'end it with dict(type={packing_step!r})'))
    is_training = place.startswith('train_dataloader')
    needs = 'training' if is_training else next(
        (f'{get_type_name(metric.type)} ({evaluator})'
         for metric in iter_evaluators(cfg, (evaluator, ))
         if get_type_name(metric.get('type')) == 'IoUMetric' and not metric.get('format_only')), '')
    if needs and not any(map(is_loading_annotations, iter_steps(steps))):
        missing.append(
            Finding('missing-step', f'{needs} needs annotations, but {place} loads none',
                    (place, 'train_cfg' if is_training else evaluator),
                    "add dict(type='LoadAnnotations')"))
    custom = ', '.join(dict.fromkeys(find_custom_steps(steps)))
    for finding in missing:
        yield Finding('not-checked', f'{finding.message}, unless {custom} does',
                      finding.places) if custom else finding


def _check_detector_steps(cfg: Config, place: str, steps: list[ConfigDict]) -> Iterator[Finding]:
    """Yield masks that are not loaded, and keys that are not packed."""
    is_training, evaluator = place.startswith('train_'), place.partition('_')[0] + '_evaluator'
    heads = {'model.roi_head.mask_head': (cfg.model.get('roi_head') or {}).get('mask_head')}
    heads |= {f'model.{name}': cfg.model.get(name) for name in ('panoptic_head', 'mask_head')}
    for index, step in enumerate(steps):
        key = f'{place}[{index}]'
        if is_loading_annotations(step) and is_training and get_setting(step, 'with_mask') is False:
            for name, head in heads.items():
                # BoxInst learns masks from boxes.
                if head and not (isinstance(head, dict)
                                 and 'BoxInst' in get_type_name(head.get('type'))):
                    yield Finding('loading-masks',
                                  f'{key}.with_mask is False, but {name} learns from masks',
                                  (f'{key}.with_mask', name), f'set {key}.with_mask=True')
                    break
        if get_step_type(step) != 'PackDetInputs' or is_training:
            continue
        needed = ['scale_factor'] if any('Resize' in get_step_type(each) for each in steps) else []
        if any('Coco' in get_type_name(metric.get('type'))
               for metric in iter_evaluators(cfg, (evaluator, ))):
            needed.append('img_id')
        keys = get_setting(step, 'meta_keys')
        if keys is not None and (missing := [each for each in needed if each not in keys]):
            yield Finding(
                'meta-keys', f'{key}.meta_keys lacks {", ".join(missing)}, which predictions and '
                f'their metric ({evaluator}) need', (f'{key}.meta_keys', evaluator),
                f'add {", ".join(map(repr, missing))}')


def _check_build(place: str, steps: list[ConfigDict]) -> Iterator[Finding]:
    """Yield steps that cannot be built; unknown types and settings have their own checks."""
    for index, step in enumerate(steps):
        if find_class(step.get('type'), TRANSFORMS) is None:
            continue
        key = f'{place}[{index}]'
        try:
            with report_third_party_errors(f'{key} ({get_step_type(step)}) cannot be built'):
                TRANSFORMS.build(dict(step))
        except UserCodeError as error:
            if 'unexpected keyword' not in str(error):
                yield Finding('step-build', str(error), (key, ), cause=error.__cause__)
