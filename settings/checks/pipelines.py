"""Pipelines of data sets: does each load, hand on and pack what comes behind it needs?"""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mmengine.config import Config, ConfigDict
from mmengine.registry import DATASETS, TRANSFORMS

from colonnade.common.errors import UserCodeError

from ..dataset_paths import evaluators, find_datasets
from ..findings import Finding
from ..known_settings import value_of
from ..pipeline_steps import (every_step, kind_of_step, loads_annotations, name_of, packs,
                              users_steps)
from ..reading import errors_of_others
from ..registries import find_class
from .dataset_checks import library_of


def pipeline_problems(cfg: Config, dataloaders: tuple[str, ...]) -> Iterator[Finding]:
    """Steps that are wrong or missing in the pipelines of data sets of mmdet and mmseg."""
    for name, dataset in find_datasets(cfg, dataloaders):
        steps = dataset.get('pipeline') or []
        library = library_of(dataset.get('type'), DATASETS)
        where = f'{name}.pipeline'
        if not library or not steps or not all(isinstance(step, dict) for step in steps):
            continue
        wrapping = steps_around(name, cfg)
        is_training = name.startswith('train_dataloader')
        if not any('Load' in kind_of_step(step) for step in (*steps, *wrapping)):
            continue  # of a data set that gives what is loaded
        yield from missing_steps(cfg, where, [*steps, *wrapping], library, is_training)
        if library == 'mmdet':
            yield from detector_problems(cfg, where, steps, is_training)
        yield from step_problems(where, steps)


def steps_around(name: str, cfg: Config) -> list[dict[str, Any]]:
    """The steps of the pipelines of the data sets that wrap one."""
    found, value = [], cfg
    for part in name.replace('[', '.').replace(']', '').split('.'):
        value = value[int(part)] if part.isdecimal() else value[part]
        if isinstance(value, dict) and isinstance(value.get('pipeline'), (list, tuple)):
            found += [step for step in value['pipeline'] if isinstance(step, dict)]
    return found


def missing_steps(cfg: Config, where: str, steps: list[dict[str, Any]], library: str,
                  is_training: bool) -> Iterator[Finding]:
    """Steps without which a pipeline, or the metric behind it, breaks.

    A user's steps may do what they are not called; a note says so.
    """
    own = ', '.join(dict.fromkeys(users_steps(steps)))
    pack = dict(mmdet='PackDetInputs', mmseg='PackSegInputs')[library]
    if not any(map(packs, every_step(steps))):
        yield downgrade_if_custom_steps(
            own,
            Finding('missing-step', f'{where} does not pack what it loads', (where, ),
                    f'end it with dict(type={pack!r})'))
    key = where.partition('_')[0] + '_evaluator'
    needs = 'training' if is_training else next(
        (f'{name_of(metric.type)} ({key})' for metric in evaluators(cfg, (key, ))
         if name_of(metric.get('type')) == 'IoUMetric' and not metric.get('format_only')), '')
    if needs and not any(map(loads_annotations, every_step(steps))):
        yield downgrade_if_custom_steps(
            own,
            Finding('missing-step', f'{where} loads no annotations, and {needs} needs them',
                    (where, 'train_cfg' if is_training else key),
                    "add dict(type='LoadAnnotations')"))


def downgrade_if_custom_steps(own: str, finding: Finding) -> Finding:
    """A missing step, as a note if steps of a user may be what is missing."""
    if not own:
        return finding
    return Finding('not-checked', f'{finding.message}, unless {own} does', finding.places)


def detector_problems(cfg: Config, where: str, steps: list[ConfigDict],
                      is_training: bool) -> Iterator[Finding]:
    """What a detector's pipeline does not load, or does not hand on."""
    for index, step in enumerate(steps):
        kind, place = kind_of_step(step), f'{where}[{index}]'
        if loads_annotations(step) and is_training and value_of(step, 'with_mask') is False and \
                (part := mask_head_of(cfg.model)):
            yield Finding('loading-masks',
                          f'{place}.with_mask is False, and {part} learns from masks',
                          (f'{place}.with_mask', part), f'set {place}.with_mask=True')
        if kind == 'PackDetInputs' and not is_training:
            yield from meta_key_problem(cfg, f'{place}.meta_keys', step, steps)


def meta_key_problem(cfg: Config, place: str, step: ConfigDict,
                     steps: list[ConfigDict]) -> Iterator[Finding]:
    """What predictions, or their metric, look up in samples, and samples do not have."""
    evaluator = place.partition('_')[0] + '_evaluator'
    needed = ['scale_factor'] if any('Resize' in kind_of_step(each) for each in steps) else []
    if any('Coco' in name_of(metric.get('type')) for metric in evaluators(cfg, (evaluator, ))):
        needed.append('img_id')
    keys = value_of(step, 'meta_keys')
    if keys is None:
        return
    if missing := [key for key in needed if key not in keys]:
        yield Finding(
            'meta-keys', f'{place} lacks {", ".join(missing)}, which predictions and their metric '
            f'({evaluator}) need', (place, evaluator), f'add {", ".join(map(repr, missing))}')


def mask_head_of(model: ConfigDict) -> str:
    """The part of a detector that learns from masks of instances, or nothing."""
    parts = {'model.roi_head.mask_head': (model.get('roi_head') or {}).get('mask_head')}
    parts |= {f'model.{name}': model.get(name) for name in ('panoptic_head', 'mask_head')}
    return next((name for name, head in parts.items() if head and not learns_from_boxes(head)), '')


def learns_from_boxes(head: Any) -> bool:
    """Whether a head of masks is BoxInst's, which needs none to learn from."""
    return isinstance(head, dict) and 'BoxInst' in name_of(head.get('type'))


def step_problems(where: str, steps: list[ConfigDict]) -> Iterator[Finding]:
    """Steps that cannot be built."""
    for index, step in enumerate(steps):
        if find_class(step.get('type'), TRANSFORMS) is None:
            continue  # the types' own check says so
        place = f'{where}[{index}]'
        try:
            with errors_of_others(f'{place} ({kind_of_step(step)}) cannot be built'):
                TRANSFORMS.build(dict(step))
        except UserCodeError as error:
            if 'unexpected keyword' not in str(error):  # the settings' own check says so
                yield Finding('step-build', str(error), (place, ), cause=error.__cause__)
