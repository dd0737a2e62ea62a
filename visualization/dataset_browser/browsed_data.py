"""What a page about a config's data shows, collected once."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.config import Config

from colonnade.common.atomic_files import check_writable
from colonnade.common.console_logging import print_traceback
from colonnade.common.errors import UserError
from colonnade.common.name_lists import format_names
from colonnade.common.progress import Progress

from .dataset_reader import ImageSet, read_set
from .decoded_label_maps import LabelCounts, count_labels
from .duplicates import Hashes, hash_images
from .image_issues import find_file_issues, find_huge_images, find_label_issues
from .issues import Issue, find_empty_images, find_rare_classes
from .model_inputs import InputPipeline
from .object_issues import find_object_issues
from .statistics import Statistics, compute_statistics

SPLITS = ('train', 'val', 'test')
MIN_VALUES = dict(num=1, draws=1, limit=1, seed=0)


@dataclass
class BrowseOptions:
    """Options of ``colonnade browse``.

    Attributes:
        config: Config file, or the name of a shipped config.
        out: Page to write.
        split: Split whose images are shown: ``'train'``, ``'val'`` or ``'test'``.
        num: Number of images that are shown, drawn by the seed.
        index: Indices of images to show instead.
        image: Names of images to show instead.
        class_name: Show only images that have this class.
        draws: How often each image passes the training pipeline.
        limit: Images of a split that are decoded to find duplicates and to count label maps.
        seed: Seed of all that is drawn at random.
        data_root: Folder of the dataset.
        cfg_options: Settings that override the config.
    """
    config: str | Path
    out: str | Path = 'browse.html'
    split: str = 'train'
    num: int = 24
    index: Sequence[int] = ()
    image: Sequence[str] = ()
    class_name: str | None = None
    draws: int = 3
    limit: int = 5000
    seed: int = 0
    data_root: str | Path | None = None
    cfg_options: dict[str, Any] | None = None

    @property
    def splits(self) -> tuple[str, str]:
        """Splits that are compared."""
        return 'train', 'test' if self.split == 'test' else 'val'

    def check(self) -> None:
        """Raise an error for options that cannot be followed."""
        for name, least in MIN_VALUES.items():
            if vars(self)[name] < least:
                raise UserError(f'--{name} is at least {least}, got {vars(self)[name]}')
        if self.split not in SPLITS:
            raise UserError(f'--split is {", ".join(SPLITS)}, got {self.split}')
        if Path(self.out).exists():
            raise UserError(f'{self.out} exists: name another --out, or remove it')
        check_writable(Path(self.out))


@dataclass
class BrowsedData:
    """The data of a config.

    Attributes:
        options: What was asked for.
        sets: Splits that are compared.
        data: Split whose images are shown, one of them.
        chosen: Indices of the images that are shown.
        pipeline: Pipeline of the shown split; None if it cannot be built.
        build_issue: Whether it cannot be built, and why.
    """
    options: BrowseOptions
    sets: list[ImageSet]
    data: ImageSet
    chosen: list[int] = field(default_factory=list)
    pipeline: InputPipeline | None = None
    build_issue: Issue = field(default_factory=lambda: Issue('dataset-build'))

    @classmethod
    def read(cls, cfg: Config, options: BrowseOptions) -> BrowsedData:
        """Read the annotations of the splits of a config.

        Raises:
            OSError: If a file is missing.
            ValueError: If the splits cannot be shown side by side.
        """
        sets = [data for name in options.splits if (data := read_set(cfg, name)) is not None]
        data = next((each for each in sets if each.name == options.split), None)
        if data is None:
            raise UserError(f'--split {options.split}: the config has no '
                            f'{options.split}_dataloader')
        if not len(data):
            raise UserError(f'--split {options.split}: the data set has no images')
        for other in sets:
            if other.classes != data.classes:
                raise UserError(
                    f'the classes of {other.name} are {format_names(other.classes, 8)}, and '
                    f'those of {data.name} {format_names(data.classes, 8)}')
        return cls(options, sets, data)

    def build_pipeline(self, cfg: Config) -> None:
        """Build the pipeline of the shown split, and note whether it can be built."""
        self.build_issue.counts = {self.data.name: 0}
        try:
            self.pipeline = InputPipeline.from_config(cfg, self.options.split)
        except ValueError as error:
            print_traceback(error)
            self.build_issue.counts = {self.data.name: 1}
            self.build_issue.note = f'The reason: {error}'

    @cached_property
    def decoded(self) -> list[list[int]]:
        """Indices of the images of each split that are decoded, in order."""
        chosen = []
        for data in self.sets:
            indices = np.random.default_rng(self.options.seed).permutation(len(data))
            chosen.append(sorted(indices[:self.options.limit].tolist()))
        return chosen

    @property
    def limit_note(self) -> str:
        """Which images were decoded; empty if all."""
        parts = [f'{len(indices):,} of the {len(data):,} images of {data.name}'
                 for data, indices in zip(self.sets, self.decoded, strict=True)
                 if len(indices) < len(data)]  # yapf: disable
        if not parts:
            return ''
        return (f'Only {" and ".join(parts)} were decoded, drawn at random: what needs the pixels '
                'is known of these alone. --limit sets how many.')

    @cached_property
    def hashes(self) -> Hashes:
        """Hashes of the images of all splits."""
        images = []
        for number, (data, indices) in enumerate(zip(self.sets, self.decoded, strict=True)):
            images += [(number, index, data.paths[index]) for index in indices]
        with Progress('images', len(images)) as progress:
            return hash_images(images, progress)

    @cached_property
    def counts(self) -> list[LabelCounts]:
        """Counts of the label maps of each split; empty for sets of objects."""
        counts = []
        for data, indices in zip(self.sets, self.decoded, strict=True):
            if data.maps:
                with Progress(f'label maps of {data.name}', len(indices)) as progress:
                    counts.append(count_labels(data, indices, progress))
        return counts

    @cached_property
    def statistics(self) -> list[Statistics]:
        """Statistics of each split."""
        if not self.counts:
            return [compute_statistics(data, None) for data in self.sets]
        return list(map(compute_statistics, self.sets, self.counts))

    @cached_property
    def issues(self) -> list[Issue]:
        """Issues of each rule, also without any breach; those of files first."""
        return [self.build_issue, *self.find_issues()]

    def find_issues(self) -> Iterator[Issue]:
        """Yield the issues of files, then those of annotations, then those of images."""
        yield from find_file_issues(self.sets, self.hashes, self.counts)
        if self.counts:
            yield from find_label_issues(self.sets, self.counts)
            yield find_rare_classes(self.statistics, 'images')
        else:
            yield from find_object_issues(self.sets)
            yield find_empty_images(self.sets)
            yield find_rare_classes(self.statistics, 'objects')
        yield find_huge_images(self.sets, self.hashes)
