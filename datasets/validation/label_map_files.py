"""Validation of the label maps of mmseg datasets."""
from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from mmcv.transforms import LoadAnnotations
from mmengine.config import Config, ConfigDict
from mmengine.registry import DATASETS, TRANSFORMS

from colonnade.common.errors import UserCodeError
from colonnade.common.name_lists import format_names
from colonnade.common.storage import content as content_of
from colonnade.common.storage import exists, is_readable
from colonnade.settings.classes import iter_class_heads
from colonnade.settings.dataset_paths import find_datasets, get_dataset_classes, get_dataset_paths
from colonnade.settings.findings import Finding
from colonnade.settings.pipeline_steps import is_loading_annotations
from colonnade.settings.reading import report_third_party_errors
from colonnade.settings.registries import find_class

from ..bands import find_band_loader
from .image_files import (OtherLabelsError, OtherSizeError, describe_read_error, open_image,
                          read_image_size, read_label_values)

SAMPLE = 50  # label maps of a dataset that are read before each training
IGNORED = 255  # label that mmseg excludes from losses and metrics


@dataclass(frozen=True)
class LabelLoading:
    """Loading of the label maps of a dataset."""
    load: Callable[[dict[str, Any]], dict[str, Any]]  # pipeline step that loads them
    classes: tuple[str, ...]  # names of the labels, from 0
    ignored: Collection[int]  # labels that are excluded from training
    settings: dict[str, Any] | None  # ``backend_args`` of the dataset
    is_stock: bool  # whether the step is mmseg's, which uses pixel values as labels
    color_type: str = 'color'  # ``color_type`` of mmcv's step that loads images
    num_bands: int | None = None  # 0 if :class:`.LoadBands` loads images

    def read_image_size(self, info: dict[str, Any]) -> tuple[int, int] | None:
        """Return width and height of an image, or None if it cannot be read."""
        try:
            source = content_of(info['img_path'], self.settings)
            if isinstance(source, BytesIO):
                with open_image(source) as image:
                    return image.size
            return read_image_size(
                Path(source), color_type=self.color_type, num_bands=self.num_bands)
        except OSError:  # the check of images reports it
            return None


def build_label_loading(cfg: Config, dataset: ConfigDict) -> LabelLoading | None:
    """Return how a dataset loads label maps, or None if it loads none or is not from mmseg."""
    base = find_class('mmseg.BaseSegDataset', DATASETS)
    cls, classes = find_class(dataset.type, DATASETS), get_dataset_classes(dataset)
    step = find_label_step(dataset)
    if (base is None or not isinstance(cls, type) or not issubclass(cls, base) or step is None
            or classes is None):
        return None
    load = TRANSFORMS.build(dict(step))
    is_stock = type(load) is find_class('mmseg.LoadAnnotations', TRANSFORMS)
    return LabelLoading(load, classes,
                        {dataset.get('ignore_index', IGNORED), *find_ignored_labels(cfg)},
                        dataset.get('backend_args'), is_stock,
                        dataset.pipeline[0].get('color_type', 'color'),
                        None if find_band_loader(dataset.pipeline) is None else 0)  # yapf: disable


def find_label_problems(cfg: Config, dataloaders: tuple[str, ...]) -> Iterator[Finding]:
    """Yield an error for each mmseg dataset with labels beyond its classes in a sample of files.

    A GPU would not name the label map at which it fails. Before training, the preflight check does
    this, and caches the result.

    Args:
        cfg: Config of a segmenter; nothing is found for a detector.
        dataloaders: Keys of the dataloaders to check.
    """
    for name, dataset in find_datasets(cfg, dataloaders):
        loading = build_label_loading(cfg, dataset)
        settings = dataset.get('backend_args')
        if loading is None or not all(
                is_readable(path, settings) and exists(path, settings)
                for path in get_dataset_paths(dataset)):
            continue
        for info in sample_evenly(load_infos(dataset), SAMPLE):
            finding = check_label_map(info, loading)
            if finding and finding.rule == 'unknown-label':
                yield replace(finding, message=f'{name}: {finding.message}',
                              places=(name, f'{name}.metainfo.classes'))  # yapf: disable
                break


def check_label_map(info: dict[str, Any],
                    loading: LabelLoading,
                    size: tuple[int, int] | None = None) -> Finding | None:
    """Return what is wrong with the label map of an image, or None.

    Args:
        info: Data info of the image.
        size: Width and height of the image, if known.
    """
    path = info['seg_map_path']
    try:
        with report_third_party_errors(f'{path} cannot be read', OSError, ValueError):
            if loading.is_stock:
                source = content_of(path, loading.settings)
                read_label_values(source if isinstance(source, BytesIO) else Path(source), size)
            labels = loading.load(dict(info)).get('gt_seg_map')
    except OSError as error:
        finding = describe_read_error(path, error)
        is_other = finding.rule == 'not-an-image'
        return Finding('wrong-label-map', finding.message) if is_other else finding
    except OtherSizeError as error:
        return Finding('other-label-map', f'{path} cannot be used: {error}')
    except OtherLabelsError as error:  # training still reads it
        return Finding('wrong-label-map', f'{path} cannot be used: {error}', effect='meaning')
    except UserCodeError as error:
        return Finding('wrong-label-map', str(error))
    except ValueError as error:
        return Finding('wrong-label-map', f'{path} cannot be used: {error}')
    if labels is None:  # a step that loads something else, e.g. depth
        return None
    if labels.ndim != 2 and isinstance(loading.load, LoadAnnotations):
        text = f'{path} has {labels.shape[-1]} channels, but a label map has one'
        return Finding('wrong-label-map', text)
    return _check_labels(labels, loading, info)


def _check_labels(labels: np.ndarray, loading: LabelLoading, info: dict[str,
                                                                        Any]) -> Finding | None:
    """Check labels ``(H, W)`` as training gets them."""
    path = info['seg_map_path']
    if labels.dtype == np.uint8:
        values = np.flatnonzero(np.bincount(labels.ravel()))
    else:
        values = np.unique(labels.astype(np.int64))  # type of packed labels in mmseg
    invalid = values[(values < 0) | (values >= len(loading.classes))]
    unknown = sorted(set(invalid.tolist()) - set(loading.ignored))
    if unknown:
        names = format_names(list(loading.classes), 8)
        shift = ', after reduce_zero_label has subtracted 1' if info.get(
            'reduce_zero_label') else ''
        return Finding(
            'unknown-label', f'{path} has label {format_names(list(map(str, unknown)), 8)}, but '
            f'the config has {len(loading.classes)} classes ({names}), which are labels 0 to '
            f'{len(loading.classes) - 1}{shift}')
    if set(values.tolist()) <= set(loading.ignored):
        return Finding('empty-label-map', f'{path}: every pixel is ignored')
    return None


def load_infos(dataset: ConfigDict) -> list[dict[str, Any]]:
    """Return the data infos of all images of a dataset, also those that training omits."""
    return build_lazily(dataset).load_data_list()


def build_lazily(dataset: ConfigDict) -> Any:
    """Build a dataset that has not read any file."""
    return DATASETS.build(dict(dataset, lazy_init=True, pipeline=[]))


def sample_evenly(items: list[Any], max_items: int) -> list[Any]:
    """Return at most ``max_items`` items, evenly spaced."""
    return items[::max(1, len(items) // max_items)][:max_items]


def find_ignored_labels(cfg: Config) -> set[int]:
    """Return the labels that heads ignore."""
    return {IGNORED} | {head['ignore_index'] for _, head in iter_class_heads(cfg.model)
                        if isinstance(head.get('ignore_index'), int)}  # yapf: disable


def find_label_step(dataset: ConfigDict) -> dict[str, Any] | None:
    """Return the pipeline step that loads annotations, or None."""
    steps = dataset.get('pipeline') or []
    return next((step for step in steps if is_loading_annotations(step)), None)
