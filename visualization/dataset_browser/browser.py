"""From a config to the page of its data."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.config import Config

from colonnade.common.atomic_files import check_writable
from colonnade.common.console_logging import print_traceback
from colonnade.common.errors import UserError
from colonnade.common.name_lists import format_names
from colonnade.common.progress import Progress
from colonnade.configs import find_config
from colonnade.settings.dataset_paths import check_data
from colonnade.settings.reading import LaunchOptions, load_config

from ..html_pages import write_page
from ..options import BrowseOptions
from . import sections
from .dataset_reader import ImageSet, chosen_images, read_set
from .decoded_label_maps import LabelCounts, count_labels
from .duplicates import Hashes, hashes_of
from .issues import Suspicion, empty_images, huge_images, rare_classes
from .label_issues import suspicions_of_files, suspicions_of_labels
from .model_inputs import Feeder
from .object_issues import suspicions_of_objects
from .statistics import LabelNumbers, Numbers, numbers_of

SPLITS = ('train', 'val', 'test')


def check_options(options: BrowseOptions) -> None:
    """Raise an error for options that cannot be followed."""
    for name, least in (('num', 1), ('draws', 1), ('limit', 1), ('seed', 0)):
        if getattr(options, name) < least:
            raise UserError(f'--{name} is at least {least}, got {getattr(options, name)}')
    if options.split not in SPLITS:
        raise UserError(f'--split is {", ".join(SPLITS)}, got {options.split}')
    if Path(options.out).exists():
        raise UserError(f'{options.out} exists: name another --out, or remove it')
    check_writable(Path(options.out))


@dataclass(frozen=True)
class Browsed:
    """What was found in a config's data.

    Attributes:
        page: The page that was written.
        numbers: Of each split.
        suspicions: Of each kind, also those that nothing was found of.
    """
    page: Path
    numbers: list[Numbers]
    suspicions: list[Suspicion]

    def __str__(self) -> str:
        """Counts, and the kinds of suspected faults that were found."""
        lines = []
        for found in self.numbers:
            counted = 'objects'
            if isinstance(found, LabelNumbers):
                counted = f'labelled pixels in {found.num_maps:,} label maps'
            lines.append(f'{found.name}: {found.num_images:,} images, '
                         f'{int(found.amounts.sum()):,} {counted}, {len(found.frequent(10**9))} of '
                         f'{len(found.classes)} classes')
        suspected = [each for each in self.suspicions if each.number]
        lines += ['suspected faults:' if suspected else 'no suspected faults']
        for each in suspected:
            lines.append(f'  {each.title}: {sections.counts_text(each)}')
        return '\n'.join(lines)


def browse(config: str | Path, **options: Any) -> Browsed:
    """Write a page that shows the data of a config, as ``tools/browse.py`` does.

    It sets the seeds of Python's, NumPy's and torch's random numbers.

    Args:
        config: A config file, or the name of a shipped config.
        **options: The attributes of :class:`BrowseOptions`.

    Raises:
        OSError: If a file of the data set is missing, or the page exists or cannot be written.
        TypeError: If there is no such option.
        ValueError: If config, options and data do not fit each other.
    """
    return browse_dataset(BrowseOptions(Path(config), **options))


def browse_dataset(told: BrowseOptions) -> Browsed:
    """As :func:`browse`, with options of ``colonnade browse``."""
    check_options(told)
    cfg = load_config(
        LaunchOptions(
            find_config(told.config), cfg_options=told.cfg_options, data_root=told.data_root))
    names = ('train', 'test' if told.split == 'test' else 'val')
    check_data(cfg, tuple(f'{name}_dataloader' for name in names))
    sets = [data for name in names if (data := read_set(cfg, name)) is not None]
    data = next((each for each in sets if each.name == told.split), None)
    check_sets(sets, data, told.split)
    assert data is not None
    return look(cfg, told, sets, data)


def check_sets(sets: Sequence[ImageSet], data: ImageSet | None, split: str) -> None:
    """Raise a ValueError for splits that cannot be shown beside each other."""
    if data is None:
        raise UserError(f'--split {split}: the config has no {split}_dataloader')
    if not len(data):
        raise UserError(f'--split {split}: the data set has no images')
    for other in sets:
        if other.classes != data.classes:
            raise UserError(
                f'the classes of {other.name} are {format_names(other.classes, 8)}, and '
                f'those of {data.name} {format_names(data.classes, 8)}')


def look(cfg: Config, told: BrowseOptions, sets: Sequence[ImageSet], data: ImageSet) -> Browsed:
    """Look at everything, and write the page."""
    chosen = chosen_images(
        data,
        num=told.num,
        indices=told.index,
        names=told.image,
        class_name=told.class_name,
        seed=told.seed,
        holds=lambda index, label: has_class(data, index, label))
    shown = [sections.annotated_section(data, chosen)]
    stop = Suspicion('dataset-build', {data.name: 0})
    try:
        feeder = Feeder.of(cfg, told.split)
    except ValueError as error:
        print_traceback(error)
        stop.counts, stop.note = {data.name: 1}, f'The reason: {error}'
    else:
        draws = told.draws if feeder.training else 1
        shown += sections.fed_sections(data, chosen, feeder, draws, told.seed)
    decoded = [drawn(each, told.limit, told.seed) for each in sets]
    hashes = hashes_with_progress(sets, decoded)
    counts = [counted(each, indices) for each, indices in zip(sets, decoded, strict=True)
              if each.maps]  # yapf: disable
    numbers = [numbers_of(each, counts[i] if counts else None) for i, each in enumerate(sets)]
    suspicions = [stop, *all_suspicions(sets, hashes, counts, numbers)]
    note = limit_note(sets, decoded)
    shown = [
        sections.overview_section(sets, numbers, suspicions, note), *shown,
        sections.statistics_section(numbers, note if counts else ''),
        sections.class_section(numbers), *sections.suspicion_sections(suspicions)
    ]
    page = Path(told.out)
    about = f'{told.config}: ' + ', '.join(f'{len(each):,} images of {each.name}' for each in sets)
    write_page(page, 'The data of a config', about, shown)
    return Browsed(page, numbers, suspicions)


def has_class(data: ImageSet, index: int, label: int) -> bool:
    """Whether an image has a class; one that cannot be read has none."""
    if data.objects is not None:
        return label in data.objects.labels[data.objects.of_image(index)]
    try:
        return bool((data.maps[index].read() == label).any())
    except (OSError, ValueError):
        return False


def drawn(data: ImageSet, limit: int, seed: int) -> list[int]:
    """The images of a split that are decoded, in order."""
    if len(data) <= limit:
        return list(range(len(data)))
    return sorted(np.random.default_rng(seed).permutation(len(data))[:limit].tolist())


def limit_note(sets: Sequence[ImageSet], decoded: Sequence[Sequence[int]]) -> str:
    """Which images were decoded, if not all."""
    parts = [
        f'{len(indices):,} of the {len(data):,} images of {data.name}'
        for data, indices in zip(sets, decoded, strict=True) if len(indices) < len(data)
    ]
    if not parts:
        return ''
    return (f'Only {" and ".join(parts)} were decoded, drawn at random: what needs the pixels is '
            'known of these alone. --limit sets how many.')


def hashes_with_progress(sets: Sequence[ImageSet], decoded: Sequence[Sequence[int]]) -> Hashes:
    """The hashes of the images of all splits."""
    images = [(number, index, data.paths[index])
              for number, (data, indices) in enumerate(zip(sets, decoded, strict=True))
              for index in indices]
    with Progress('images', len(images)) as progress:
        return hashes_of(images, progress)


def counted(data: ImageSet, indices: Sequence[int]) -> LabelCounts:
    """What is in the label maps of a split."""
    with Progress(f'label maps of {data.name}', len(indices)) as progress:
        return count_labels(data, indices, progress)


def all_suspicions(sets: Sequence[ImageSet], hashes: Hashes, counts: Sequence[LabelCounts],
                   numbers: Sequence[Numbers]) -> list[Suspicion]:
    """All kinds, those of files first."""
    found = [*suspicions_of_files(sets, hashes, counts)]
    if counts:
        found += [*suspicions_of_labels(sets, counts), rare_classes(numbers, 'images')]
    else:
        found += [
            *suspicions_of_objects(sets),
            empty_images(sets),
            rare_classes(numbers, 'objects')
        ]
    sizes = []
    for number in range(len(sets)):
        own = hashes.places[:, 0] == number
        sizes.append(np.column_stack([hashes.places[own, 1], hashes.sizes[own]]))
    return [*found, huge_images(sets, sizes)]
