"""Images and annotations of a config's datasets as the files have them, unfiltered and unresized.

mmdet's datasets skip annotations that training cannot use, which are what the browser looks for.
COCO files are therefore read directly.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from io import StringIO
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from mmdet.datasets import CocoDataset, CocoPanopticDataset
from mmengine.config import Config, ConfigDict
from mmengine.registry import DATASETS, TRANSFORMS, DefaultScope
from PIL import UnidentifiedImageError

from colonnade.common.errors import UserCodeError, UserError
from colonnade.common.name_lists import format_names, suggest_names
from colonnade.common.storage.file_access import is_remote
from colonnade.datasets.bands import LoadBands, find_band_loader, read_picture
from colonnade.datasets.custom.label_maps import IGNORED
from colonnade.inference.drawing import Color
from colonnade.runtime.colors import distinct_colors
from colonnade.settings.dataset_paths import find_datasets, get_dataset_paths
from colonnade.settings.pipeline_steps import is_loading_annotations
from colonnade.settings.reading import report_build_errors, report_third_party_errors

from ..coco_content import build_coco_content
from ..options import BrowseOptions
from ..upstream import is_subset
from .objects import Objects, read_coco_objects, select_objects


@dataclass(frozen=True)
class LabelMapFile:
    """Label map of an image."""
    info: dict[str, Any]  # get_data_info of mmseg's dataset
    load: Callable[[dict[str, Any]], dict[str, Any]]  # pipeline step that loads annotations
    num_classes: int  # number of classes of the dataset

    def read(self) -> np.ndarray:
        """Return the labels that mmseg trains with, ``(H, W)``, int64.

        The ignored label becomes the number of classes. A label without a class that has this
        value already is increased by 1.
        """
        path = self.info.get('seg_map_path')
        if path is None:
            raise UserError(f'the dataset has no label map for {self.info["img_path"]}')
        try:
            with report_third_party_errors(f'cannot decode {path}'):
                labels = self.load({**self.info, 'seg_fields': []})['gt_seg_map'].astype(np.int64)
        except UserCodeError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise UserError(f'{path} does not exist') from error
            if isinstance(error.__cause__, UnidentifiedImageError):
                raise UserError(f'{path} is not a readable image') from error
            raise
        if labels.ndim != 2:
            raise UserError(f'{path} is not a label map: it has {labels.shape[-1]} channels')
        is_ignored, is_taken = labels == IGNORED, labels == self.num_classes
        labels[is_taken] += 1
        labels[is_ignored] = self.num_classes
        return labels


@dataclass
class ImageSet:
    """Images of a split with their annotations."""
    name: str  # 'train', 'val' or 'test'
    classes: tuple[str, ...]  # class names
    palette: tuple[Color, ...]  # colors of the classes
    paths: list[str]  # image paths, in the order of the files
    sizes: np.ndarray  # declared width and height of each image, (I, 2); 0 where none is declared
    objects: Objects | None = None  # annotated objects; None for label maps
    # Label map of each image, or empty for objects.
    maps: list[LabelMapFile] = field(default_factory=list)
    # Reason to skip annotations -> number of annotations.
    left_out: dict[str, int] = field(default_factory=dict)
    num_things: int | None = None  # number of the first classes, of panoptic things; else None
    bands: LoadBands | None = None  # step that loads images of more bands than RGB

    def __len__(self) -> int:
        return len(self.paths)

    def read_image(self, index: int) -> np.ndarray:
        """Read an image as RGB values, ``(H, W, 3)``, uint8; three of several bands."""
        return read_picture(self.paths[index], self.bands)

    def get_file_name(self, index: int) -> str:
        """Return the file name of an image."""
        return Path(self.paths[index]).name

    def has_class(self, index: int, label: int) -> bool:
        """Return True if a class occurs in an image; False for an unreadable image."""
        if self.objects is not None:
            return label in self.objects.labels[self.objects.find_in_image(index)]
        try:
            return bool((self.maps[index].read() == label).any())
        except (OSError, ValueError):
            return False


def get_dataset_settings(cfg: Config, split: str) -> ConfigDict | None:
    """Return the settings of a split's dataset with its wrappers, or None if there is none."""
    loader = cfg.get(f'{split}_dataloader') or {}
    if isinstance(loader, (list, tuple)):  # several datasets, tested one after the other
        loader = loader[0] if loader else {}
    return loader.get('dataset')


def build_dataset(cfg: Config, settings: ConfigDict, **changes: Any) -> Any:
    """Build a dataset of mmdet or mmseg, with some settings overridden."""
    scope = DefaultScope.overwrite_default_scope(cfg.default_scope)
    with scope, report_build_errors(), redirect_stdout(
            StringIO()):  # pycocotools prints its progress.
        return DATASETS.build({**settings, **changes})


def read_set(cfg: Config, split: str) -> ImageSet | None:
    """Return all images and annotations of a split, or None if the config has no such split."""
    if get_dataset_settings(cfg, split) is None:
        return None
    datasets = [settings for _, settings in find_datasets(cfg, (f'{split}_dataloader', ))]
    for path in chain.from_iterable(map(get_dataset_paths, datasets)):
        if is_remote(path):
            raise UserError(f'{path} cannot be browsed: pass --data-root with a local folder')
    parts = [
        replace(read_part(cfg, settings, split), bands=find_band_loader(settings.get('pipeline')))
        for settings in datasets
    ]
    if not parts:
        raise UserError(f'{split}_dataloader reads no files, so there is nothing to browse')
    return parts[0] if len(parts) == 1 else merge_sets(parts)


def read_part(cfg: Config, settings: ConfigDict, split: str) -> ImageSet:
    """Return the images and annotations of one dataset without wrappers."""
    dataset = build_dataset(cfg, settings, pipeline=[], test_mode=True, lazy_init=True)
    classes = tuple(dataset.metainfo.get('classes') or ())
    palette = dataset.metainfo.get('palette')
    if not isinstance(palette, (list, tuple)) or len(palette) < len(classes):
        palette = distinct_colors(len(classes))
    colors = tuple((int(r), int(g), int(b)) for r, g, b in palette[:len(classes)])
    if cfg.default_scope == 'mmdet' and is_coco_dataset(dataset):
        is_panoptic = isinstance(dataset, CocoPanopticDataset)
        num_things = len(dataset.metainfo.get('thing_classes') or ()) if is_panoptic else None
        return ImageSet(split, classes, colors, **read_coco_objects(dataset, classes),
                        num_things=num_things)  # yapf: disable
    dataset.full_init()
    if cfg.default_scope != 'mmseg':
        content = build_coco_content(dataset)
        paths = [each['file_name'] for each in content['images']]
        sizes = [(each['width'] or 0, each['height'] or 0) for each in content['images']]
        images, labels = ({i: i for i in range(len(each))} for each in (paths, classes))
        objects, left_out = select_objects(content['annotations'], images, labels)
        return ImageSet(split, classes, colors, paths, np.array(sizes).reshape(-1, 2), objects,
                        left_out=left_out)  # yapf: disable
    steps = [step for step in settings.get('pipeline') or () if is_loading_annotations(step)]
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        load = TRANSFORMS.build(steps[0] if steps else dict(type='LoadAnnotations'))
    maps = [LabelMapFile(dataset.get_data_info(i), load, len(classes)) for i in range(len(dataset))]
    paths = [each.info['img_path'] for each in maps]
    return ImageSet(split, classes, colors, paths, np.zeros((len(paths), 2), int), maps=maps)


def is_coco_dataset(dataset: Any) -> bool:
    """Return True if a dataset reads all of a COCO file with mmdet's own methods."""
    return (isinstance(dataset, CocoDataset) and not is_subset(dataset)
            and type(dataset).load_data_list is CocoDataset.load_data_list
            and type(dataset).parse_data_info
            in (CocoDataset.parse_data_info, CocoPanopticDataset.parse_data_info))


def merge_sets(parts: Sequence[ImageSet]) -> ImageSet:
    """Return several datasets as one, with classes matched by name."""
    names = tuple(dict.fromkeys(name for part in parts for name in part.classes))
    colors: dict[str, Color] = {}
    for part in reversed(parts):
        colors |= zip(part.classes, part.palette, strict=True)
    objects = None
    if parts[0].objects is not None:
        starts = np.cumsum([0, *map(len, parts)])
        moved = []
        for part, start in zip(parts, starts, strict=False):
            assert part.objects is not None  # Datasets of one config are of one task.
            labels = np.array([names.index(name) for name in part.classes], dtype=np.int64)
            moved.append(replace(part.objects, images=part.objects.images + start,
                                 labels=labels[part.objects.labels]))  # yapf: disable
        objects = Objects.concatenate(moved)
    elif any(part.classes != names for part in parts):
        raise UserError('the datasets of the config have label maps with different classes')
    left_out = sum((Counter(part.left_out) for part in parts), Counter[str]())
    return ImageSet(parts[0].name, names, tuple(colors[name] for name in names),
                    [path for part in parts for path in part.paths],
                    np.concatenate([part.sizes for part in parts
                                    ]), objects, [each for part in parts for each in part.maps],
                    dict(left_out), parts[0].num_things, parts[0].bands)


def select_images(data: ImageSet, options: BrowseOptions) -> list[int]:
    """Return the indices of the images to show: all that are named, or some random ones."""
    label = None if options.class_name is None else find_label(data, options.class_name)
    for index in options.index:
        if not 0 <= index < len(data):
            raise UserError(
                f'--index must be between 0 and {len(data) - 1} for {data.name}, got {index}')
    named = [*options.index, *(i for name in options.image for i in find_named_images(data, name))]
    order = named or np.random.default_rng(options.seed).permutation(len(data)).tolist()
    matches = (i for i in dict.fromkeys(order) if label is None or data.has_class(i, label))
    chosen = list(matches if named else islice(matches, options.num))
    if not chosen and label is not None:
        raise UserError(f'no image of {data.name} contains the class {options.class_name!r}')
    return chosen


def find_label(data: ImageSet, class_name: str) -> int:
    """Return the index of a class; spaces around names, as in mmseg's ADE20K, are ignored."""
    names = [name.strip() for name in data.classes]
    if class_name.strip() in names:
        return names.index(class_name.strip())
    hint = suggest_names(class_name, names, count=3) or f'expected one of {format_names(names, 8)}'
    raise UserError(f'the dataset has no class {class_name!r}: {hint}')


def find_named_images(data: ImageSet, name: str) -> list[int]:
    """Return the indices of the images of a file name or path."""
    paths = list(enumerate(map(Path, data.paths)))
    matches = [i for i, path in paths if name in (data.paths[i], path.name)]
    matches = matches or [i for i, path in paths if path.stem == name]
    if not matches:
        raise UserError(f'{data.name} has no image {name!r}: pass names such as '
                        f'{data.get_file_name(0)!r}')
    return matches
