"""What the files of a config's datasets say: nothing is left out or resized.

mmdet's datasets leave out annotations that are not fit to train with. Those are looked for here.
So a file in COCO's form is read itself.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from difflib import get_close_matches
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from mmdet.datasets import CocoDataset
from mmengine.config import Config, ConfigDict
from mmengine.registry import DATASETS, TRANSFORMS, DefaultScope
from PIL import UnidentifiedImageError

from colonnade.common.errors import UserError
from colonnade.common.name_lists import format_names
from colonnade.datasets.custom.label_maps import IGNORED
from colonnade.inference.drawing import Color
from colonnade.runtime.colors import distinct_colors
from colonnade.settings.dataset_paths import find_datasets
from colonnade.settings.pipeline_steps import loads_annotations
from colonnade.settings.reading import build_error

from ..upstream import is_subset
from .objects import Objects, build_objects, join_objects, read_coco_objects


@dataclass(frozen=True)
class LabelMapFile:
    """The label map of an image.

    Attributes:
        info: What mmseg's dataset says of the image.
        load: Step of the pipeline that reads annotations.
        num_classes: Number of classes of the dataset.
    """
    info: dict[str, Any]
    load: Callable[[dict[str, Any]], dict[str, Any]]
    num_classes: int

    def read(self) -> np.ndarray:
        """Return the labels as mmseg trains with them, ``(H, W)``, int64.

        The ignored label becomes the number of classes. Labels that no class has stay as they are,
        but for that number, which becomes the next.

        Raises:
            ValueError: If the file cannot be read; the message names it.
        """
        path = self.info.get('seg_map_path')
        if path is None:
            raise UserError(f'{self.info["img_path"]}: the data set names no label map of it')
        try:
            labels = self.load({**self.info, 'seg_fields': []})['gt_seg_map'].astype(np.int64)
        except FileNotFoundError as error:
            raise UserError(f'{path}: there is no such file') from error
        except UnidentifiedImageError as error:
            raise UserError(f'{path} is no image that can be read') from error
        except Exception as error:  # decoders raise errors of all kinds
            raise UserError(f'{path} cannot be decoded: {error}') from error
        if labels.ndim != 2:
            raise UserError(f'{path} is no label map: it has {labels.shape[-1]} channels')
        is_ignored, is_taken = labels == IGNORED, labels == self.num_classes
        labels[is_taken] += 1
        labels[is_ignored] = self.num_classes
        return labels


@dataclass
class ImageSet:
    """The images of a split and their annotations.

    Attributes:
        name: ``'train'``, ``'val'`` or ``'test'``.
        classes: Names of the classes.
        palette: Colors of the classes.
        paths: Paths of the images, in the order of the files.
        sizes: Width and height of each image as the files say them, ``(I, 2)``; 0 if they do not.
        objects: Annotated objects; None for a set of label maps.
        maps: Label map of each image; empty for a set of objects.
        left_out: Reason why something is not counted as an annotation -> how often.
    """
    name: str
    classes: tuple[str, ...]
    palette: tuple[Color, ...]
    paths: list[str]
    sizes: np.ndarray
    objects: Objects | None = None
    maps: list[LabelMapFile] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.paths)

    def get_file_name(self, index: int) -> str:
        """Return the name of an image without its folder."""
        return Path(self.paths[index]).name

    def has_class(self, index: int, label: int) -> bool:
        """Return True if an image has a class; one that cannot be read has none."""
        if self.objects is not None:
            return label in self.objects.labels[self.objects.find_in_image(index)]
        try:
            return bool((self.maps[index].read() == label).any())
        except (OSError, ValueError):
            return False


def get_dataset_settings(cfg: Config, split: str) -> ConfigDict | None:
    """Return the settings of a split's dataset, wrappers included; None if there is none."""
    loader = cfg.get(f'{split}_dataloader') or {}
    if isinstance(loader, (list, tuple)):  # several datasets, tested one after the other
        loader = loader[0] if loader else {}
    return loader.get('dataset')


def build_dataset(cfg: Config, settings: ConfigDict, **changes: Any) -> Any:
    """Build a dataset of mmdet or mmseg.

    Args:
        cfg: Config of the dataset, which names the library.
        settings: Settings of the dataset.
        **changes: Settings that it gets instead.

    Raises:
        ValueError: If its type or a setting is not known.
    """
    scope = DefaultScope.overwrite_default_scope(cfg.default_scope)
    with scope, build_error(), redirect_stdout(StringIO()):  # pycocotools prints its progress
        return DATASETS.build({**settings, **changes})


def read_set(cfg: Config, split: str) -> ImageSet | None:
    """Return all images and annotations of a split, of every dataset that its wrappers hold.

    Args:
        cfg: Config of a detector or segmenter.
        split: ``'train'``, ``'val'`` or ``'test'``.

    Returns:
        None if the config has no such split.

    Raises:
        OSError: If a file is missing.
        ValueError: If a file does not have the format that the config says.
    """
    if get_dataset_settings(cfg, split) is None:
        return None
    parts = [read_part(cfg, settings, split)
             for _, settings in find_datasets(cfg, (f'{split}_dataloader', ))]  # yapf: disable
    if not parts:
        raise UserError(f'{split}_dataloader reads no files: there is nothing to look at')
    return parts[0] if len(parts) == 1 else merge_sets(parts)


def read_part(cfg: Config, settings: ConfigDict, split: str) -> ImageSet:
    """Return all that a dataset without wrappers reads."""
    dataset = build_dataset(cfg, settings, pipeline=[], test_mode=True, lazy_init=True)
    classes = tuple(dataset.metainfo.get('classes') or ())
    palette = dataset.metainfo.get('palette')
    if not isinstance(palette, (list, tuple)) or len(palette) < len(classes):
        palette = distinct_colors(len(classes))
    colors = tuple((int(r), int(g), int(b)) for r, g, b in palette[:len(classes)])
    if cfg.default_scope == 'mmdet' and is_coco_dataset(dataset):
        return ImageSet(split, classes, colors, **read_coco_objects(dataset, classes))
    dataset.full_init()
    infos: Sequence[dict[str, Any]] = [dataset.get_data_info(i) for i in range(len(dataset))]
    paths = [info['img_path'] for info in infos]
    if cfg.default_scope == 'mmseg':
        load = build_map_loader(cfg, settings)
        maps = [LabelMapFile(info, load, len(classes)) for info in infos]
        sizes = np.zeros((len(paths), 2), int)
        return ImageSet(split, classes, colors, paths, sizes, maps=maps)
    sizes = np.array([(info.get('width') or 0, info.get('height') or 0) for info in infos])
    return ImageSet(split, classes, colors, paths, sizes.reshape(-1, 2), build_objects(infos))


def build_map_loader(cfg: Config, settings: ConfigDict) -> Callable[[dict], dict[str, Any]]:
    """Build the step of a dataset's pipeline that reads label maps, mmseg's if it has none."""
    steps = [step for step in settings.get('pipeline') or () if loads_annotations(step)]
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        return TRANSFORMS.build(steps[0] if steps else dict(type='LoadAnnotations'))


def is_coco_dataset(dataset: Any) -> bool:
    """Return True if a dataset reads a file in COCO's form as mmdet's CocoDataset does, in full."""
    return (isinstance(dataset, CocoDataset) and not is_subset(dataset)
            and type(dataset).load_data_list is CocoDataset.load_data_list
            and type(dataset).parse_data_info is CocoDataset.parse_data_info)


def merge_sets(parts: Sequence[ImageSet]) -> ImageSet:
    """Return several sets as one, whose classes are identified by their names."""
    names = tuple(dict.fromkeys(name for part in parts for name in part.classes))
    colors: dict[str, Color] = {}
    for part in reversed(parts):
        colors |= zip(part.classes, part.palette, strict=True)
    objects = None
    if parts[0].objects is not None:
        starts = np.cumsum([0, *map(len, parts)]).tolist()
        labels = [np.array([names.index(name) for name in part.classes], dtype=np.int64)
                  for part in parts]  # yapf: disable
        objects = join_objects([part.objects for part in parts if part.objects is not None], starts,
                               labels)
    elif any(part.classes != names for part in parts):
        raise UserError('the data sets of the config have label maps of different classes')
    left_out = sum((Counter(part.left_out) for part in parts), Counter[str]())
    return ImageSet(parts[0].name, names, tuple(colors[name] for name in names),
                    [path for part in parts for path in part.paths],
                    np.concatenate([part.sizes for part in parts]), objects,
                    [each for part in parts for each in part.maps], dict(left_out))


def select_images(data: ImageSet,
                  *,
                  num: int,
                  indices: Sequence[int] = (),
                  names: Sequence[str] = (),
                  class_name: str | None = None,
                  seed: int = 0) -> list[int]:
    """Return the indices of the images to show.

    Args:
        data: Set of images.
        num: Maximum number of images, drawn by the seed, where none are named.
        indices: Indices of images in the set.
        names: Names or paths of images.
        class_name: Only images that have this class.
        seed: Seed of the random draw.

    Raises:
        ValueError: If there is no such image or class.
    """
    label = None if class_name is None else find_label(data, class_name)
    wrong = [index for index in indices if not 0 <= index < len(data)]
    if wrong:
        raise UserError(f'--index is from 0 to {len(data) - 1} in {data.name}, got {wrong[0]}')
    named = [*indices, *(index for name in names for index in find_named_images(data, name))]
    order = named or np.random.default_rng(seed).permutation(len(data)).tolist()
    chosen: list[int] = []
    for index in dict.fromkeys(order):
        if label is None or data.has_class(index, label):
            chosen.append(index)
        if len(chosen) == num and not named:
            break
    if not chosen and label is not None:
        raise UserError(f'--class {class_name}: no image of {data.name} has it')
    return chosen


def find_label(data: ImageSet, class_name: str) -> int:
    """Return the index of a class; blanks around names, as in mmseg's ADE20k, do not count.

    Raises:
        ValueError: If there is none of this name.
    """
    names = [name.strip() for name in data.classes]
    if class_name.strip() in names:
        return names.index(class_name.strip())
    near = get_close_matches(class_name, names, n=3)
    hint = f'did you mean {" or ".join(near)}?' if near else f'it has {format_names(names, 8)}'
    raise UserError(f'--class {class_name}: the data set has no such class; {hint}')


def find_named_images(data: ImageSet, name: str) -> list[int]:
    """Return the indices of the images of a name or a path.

    Raises:
        ValueError: If there are none.
    """
    paths = list(enumerate(map(Path, data.paths)))
    found = [i for i, path in paths if name in (data.paths[i], path.name)]
    found = found or [i for i, path in paths if path.stem == name]
    if not found:
        raise UserError(f'--image {name}: {data.name} has no such image; the first is '
                        f'{data.get_file_name(0) if len(data) else "missing: it has none"}')
    return found
