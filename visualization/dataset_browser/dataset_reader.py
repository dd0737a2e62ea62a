"""What the files of a config's data sets say, as they are: nothing is left out or resized.

mmdet's data sets leave out annotations that are not fit to train with. Those are looked for here.
So a file in COCO's form is read itself.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from difflib import get_close_matches
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.config import Config, ConfigDict
from mmengine.registry import DATASETS, TRANSFORMS, DefaultScope
from PIL import UnidentifiedImageError

from colonnade.common.errors import UserError
from colonnade.common.name_lists import format_names
from colonnade.datasets.custom.label_maps import IGNORED
from colonnade.inference.drawing import Colour
from colonnade.runtime.colors import distinct_colors
from colonnade.settings.dataset_paths import find_datasets
from colonnade.settings.pipeline_steps import loads_annotations
from colonnade.settings.reading import build_error

from .objects import Objects, joined, objects_of_coco, objects_of_infos


@dataclass(frozen=True)
class LabelMapFile:
    """The label map of an image.

    Attributes:
        info: What mmseg's data set says of the image.
        load: The step of the pipeline that reads annotations.
        num_classes: Of the data set.
    """
    info: dict[str, Any]
    load: Callable[[dict[str, Any]], dict[str, Any]]
    num_classes: int

    def read(self) -> np.ndarray:
        """The labels as mmseg trains with them, ``(H, W)``, int64.

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
        except Exception as error:  # decoders raise of all kinds
            raise UserError(f'{path} cannot be decoded: {error}') from error
        if labels.ndim != 2:
            raise UserError(f'{path} is no label map: it has {labels.shape[-1]} channels')
        ignored, wrong = labels == IGNORED, labels == self.num_classes
        labels[wrong] += 1
        labels[ignored] = self.num_classes
        return labels


@dataclass
class ImageSet:
    """The images of a split and their annotations.

    Attributes:
        name: ``'train'``, ``'val'`` or ``'test'``.
        classes: Their names.
        palette: Their colours.
        paths: Of the images, in the order of the files.
        sizes: Width and height of each image as the files say them, ``(I, 2)``; 0 if they do not.
        objects: The annotated objects; None of a set of label maps.
        maps: The label map of each image; empty of a set of objects.
        left_out: What is not counted as an annotation, and how often.
    """
    name: str
    classes: tuple[str, ...]
    palette: tuple[Colour, ...]
    paths: list[str]
    sizes: np.ndarray
    objects: Objects | None = None
    maps: list[LabelMapFile] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.paths)

    def file(self, index: int) -> str:
        """The name of an image without its folder."""
        return Path(self.paths[index]).name


def dataset_settings(cfg: Config, split: str) -> ConfigDict | None:
    """The settings of a split's data set, wrappers included; None if the config has none."""
    loader = cfg.get(f'{split}_dataloader') or {}
    if isinstance(loader, (list, tuple)):  # several data sets, tested one after the other
        loader = loader[0] if loader else {}
    return loader.get('dataset')


def build_dataset(cfg: Config, settings: ConfigDict, **changes: Any) -> Any:
    """A data set of mmdet's or mmseg's.

    Args:
        cfg: Its config, of which the library is known.
        settings: Of the data set.
        **changes: Settings that it gets instead.

    Raises:
        ValueError: If its type or a setting is not known.
    """
    scope = DefaultScope.overwrite_default_scope(cfg.default_scope)
    with scope, build_error(), redirect_stdout(StringIO()):  # pycocotools prints its progress
        return DATASETS.build({**settings, **changes})


def read_set(cfg: Config, split: str) -> ImageSet | None:
    """All images and annotations of a split, of every data set that its wrappers hold.

    Args:
        cfg: Of a detector or segmenter.
        split: ``'train'``, ``'val'`` or ``'test'``.

    Returns:
        None if the config has no such split.

    Raises:
        OSError: If a file is missing.
        ValueError: If a file is not of the form that the config says.
    """
    if dataset_settings(cfg, split) is None:
        return None
    parts = [settings for _, settings in find_datasets(cfg, (f'{split}_dataloader', ))]
    if not parts:
        raise UserError(f'{split}_dataloader reads no files: there is nothing to look at')
    found = [read_part(cfg, settings, split) for settings in parts]
    return found[0] if len(found) == 1 else merged(found)


def read_part(cfg: Config, settings: ConfigDict, split: str) -> ImageSet:
    """All that a data set without wrappers reads."""
    dataset = build_dataset(cfg, settings, pipeline=[], test_mode=True, lazy_init=True)
    classes = tuple(dataset.metainfo.get('classes') or ())
    palette = dataset.metainfo.get('palette')
    if not isinstance(palette, (list, tuple)) or len(palette) < len(classes):
        palette = distinct_colors(len(classes))
    colours = tuple((int(r), int(g), int(b)) for r, g, b in palette[:len(classes)])
    about: dict[str, Any] = dict(name=split, classes=classes, palette=colours)
    if cfg.default_scope == 'mmdet' and reads_coco(dataset):
        return ImageSet(**about, **objects_of_coco(dataset, classes))
    dataset.full_init()
    infos: Sequence[dict[str, Any]] = [dataset.get_data_info(i) for i in range(len(dataset))]
    paths = [info['img_path'] for info in infos]
    if cfg.default_scope == 'mmseg':
        load = loader_of_maps(cfg, settings)
        maps = [LabelMapFile(info, load, len(classes)) for info in infos]
        return ImageSet(**about, paths=paths, sizes=np.zeros((len(paths), 2), int), maps=maps)
    sizes = np.array([(info.get('width') or 0, info.get('height') or 0) for info in infos])
    return ImageSet(
        **about, paths=paths, sizes=sizes.reshape(-1, 2), objects=objects_of_infos(infos))


def loader_of_maps(cfg: Config, settings: ConfigDict) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The step of a data set's pipeline that reads label maps, mmseg's where it has none."""
    steps = [step for step in settings.get('pipeline') or () if loads_annotations(step)]
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        return TRANSFORMS.build(steps[0] if steps else dict(type='LoadAnnotations'))


def reads_coco(dataset: Any) -> bool:
    """Whether a data set reads a file in COCO's form as mmdet's CocoDataset does, all of it."""
    from mmdet.datasets import CocoDataset
    kind, own = type(dataset), ('load_data_list', 'parse_data_info')
    return (isinstance(dataset, CocoDataset) and dataset._indices is None
            and all(getattr(kind, name) is getattr(CocoDataset, name) for name in own))


def merged(parts: Sequence[ImageSet]) -> ImageSet:
    """Several sets as one, whose classes are told apart by their names."""
    names = tuple(dict.fromkeys(name for part in parts for name in part.classes))
    colours = {
        name: colour
        for part in reversed(parts)
        for name, colour in zip(part.classes, part.palette, strict=True)
    }
    starts = np.cumsum([0, *map(len, parts)])
    objects = None
    if parts[0].objects is not None:
        objects = joined([part.objects for part in parts if part.objects is not None], starts,
                         [numbers_of(part.classes, names) for part in parts])
    elif any(part.classes != names for part in parts):
        raise UserError('the data sets of the config have label maps of different classes')
    left_out: dict[str, int] = {}
    for part in parts:
        for reason, number in part.left_out.items():
            left_out[reason] = left_out.get(reason, 0) + number
    return ImageSet(
        parts[0].name,
        names,
        tuple(colours[name] for name in names), [path for part in parts for path in part.paths],
        np.concatenate([part.sizes for part in parts]),
        objects=objects,
        maps=[info for part in parts for info in part.maps],
        left_out=left_out)


def numbers_of(classes: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """Where each class stands among the names."""
    return np.array([names.index(name) for name in classes], dtype=np.int64)


def chosen_images(data: ImageSet,
                  *,
                  num: int,
                  indices: Sequence[int] = (),
                  names: Sequence[str] = (),
                  class_name: str | None = None,
                  seed: int = 0,
                  holds: Callable[[int, int], bool]) -> list[int]:
    """The images to show.

    Args:
        data: Of which.
        num: Images at most, drawn by the seed, where none are named.
        indices: Positions of images in the set.
        names: Names or paths of images.
        class_name: Only images that have it.
        seed: Of the draw.
        holds: Whether an image has a class, both by their indices.

    Raises:
        ValueError: If there is no such image or class.
    """
    label = None if class_name is None else label_of(data, class_name)
    wrong = [index for index in indices if not 0 <= index < len(data)]
    if wrong:
        raise UserError(f'--index is from 0 to {len(data) - 1} in {data.name}, got {wrong[0]}')
    named = [*indices, *(found for name in names for found in positions(data, name))]
    order = named or np.random.default_rng(seed).permutation(len(data)).tolist()
    if label is None:
        return list(dict.fromkeys(order))[:None if named else num]
    found: list[int] = []
    for index in dict.fromkeys(order):
        if holds(index, label):
            found.append(index)
        if len(found) == num and not named:
            break
    if not found:
        raise UserError(f'--class {class_name}: no image of {data.name} has it')
    return found


def label_of(data: ImageSet, class_name: str) -> int:
    """The index of a class; blanks around names, as mmseg's ADE20k has them, do not count.

    Raises:
        ValueError: If there is none of this name.
    """
    names = [name.strip() for name in data.classes]
    if class_name.strip() in names:
        return names.index(class_name.strip())
    near = get_close_matches(class_name, names, n=3)
    meant = f'did you mean {" or ".join(near)}?' if near else f'it has {format_names(names, 8)}'
    raise UserError(f'--class {class_name}: the data set has no such class; {meant}')


def positions(data: ImageSet, name: str) -> Iterator[int]:
    """Where the images of a name stand, or of a path.

    Raises:
        ValueError: If there are none.
    """
    found = [i for i, path in enumerate(data.paths) if name in (path, Path(path).name)]
    found = found or [i for i, path in enumerate(data.paths) if Path(path).stem == name]
    if not found:
        raise UserError(f'--image {name}: {data.name} has no such image; the first is '
                        f'{data.file(0) if len(data) else "missing: it has none"}')
    yield from found
