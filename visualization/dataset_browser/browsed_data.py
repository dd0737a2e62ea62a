"""Dataset under inspection: what the page about it shows, computed once."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from mmengine.config import Config

from colonnade.common.console_logging import print_traceback
from colonnade.common.errors import UserError
from colonnade.common.name_lists import format_names

from ..options import BrowseOptions
from .dataset_reader import ImageSet, read_set, select_images
from .image_scan import Hashes, LabelCounts, count_labels, hash_images
from .issues import (SuspectedIssue, find_empty_images, find_file_issues, find_huge_images,
                     find_label_issues, find_rare_classes)
from .model_inputs import InputPipeline
from .object_issues import find_object_issues
from .statistics import Statistics, compute_statistics


@dataclass
class BrowsedData:
    """The annotations and model inputs that a page shows."""
    options: BrowseOptions  # options of the page
    sets: list[ImageSet]  # splits to compare
    data: ImageSet  # the split whose images are shown
    chosen: list[int]  # indices of the images to show
    pipeline: InputPipeline | None  # input pipeline of that split, or None if building it failed
    build_error: str  # why it failed

    @classmethod
    def read(cls, cfg: Config, options: BrowseOptions) -> BrowsedData:
        """Read the annotations of the splits of a config, and build the input pipeline."""
        sets = [data for name in options.splits if (data := read_set(cfg, name)) is not None]
        data = next((each for each in sets if each.name == options.split), None)
        if data is None:
            raise UserError(f'--split {options.split}: the config has no '
                            f'{options.split}_dataloader')
        if not len(data):
            raise UserError(f'--split {options.split}: the dataset has no images')
        for other in sets:
            if other.classes != data.classes:
                raise UserError(
                    f'the classes of {other.name} are {format_names(other.classes, 8)}, but '
                    f'those of {data.name} are {format_names(data.classes, 8)}')
        chosen = select_images(data, options)
        try:
            return cls(options, sets, data, chosen, InputPipeline.from_config(cfg, data.name), '')
        except ValueError as error:
            print_traceback(error)
            return cls(options, sets, data, chosen, None, str(error))

    @cached_property
    def decoded(self) -> list[list[int]]:
        """Indices of the images of each split that are decoded, in order."""
        chosen = []
        for data in self.sets:
            indices = np.random.default_rng(self.options.seed).permutation(len(data))
            chosen.append(sorted(indices[:self.options.max_decoded].tolist()))
        return chosen

    @property
    def limit_note(self) -> str:
        """Number of decoded images; empty if all are decoded."""
        parts = [f'{len(indices):,} of the {len(data):,} images of {data.name}'
                 for data, indices in zip(self.sets, self.decoded, strict=True)
                 if len(indices) < len(data)]  # yapf: disable
        if not parts:
            return ''
        return (f'Only {" and ".join(parts)} were decoded, drawn at random. Statistics and checks '
                'that need pixels cover only these. To decode more, pass --max-decoded N.')

    @cached_property
    def hashes(self) -> Hashes:
        """Hashes of the images of all splits."""
        return hash_images([(number, index, data.paths[index])
                            for number, data in enumerate(self.sets)
                            for index in self.decoded[number]], self.sets[0].bands)  # yapf: disable

    @cached_property
    def counts(self) -> list[LabelCounts]:
        """Counts of the label maps of each split; empty for objects."""
        return [count_labels(data, indices)
                for data, indices in zip(self.sets, self.decoded, strict=True)
                if data.maps]  # yapf: disable

    @cached_property
    def statistics(self) -> list[Statistics]:
        """Statistics of each split."""
        counts: Sequence[LabelCounts | None] = self.counts or [None] * len(self.sets)
        return list(map(compute_statistics, self.sets, counts))

    @cached_property
    def issues(self) -> list[SuspectedIssue]:
        """Suspected issues of each rule, including rules without breaches; those of files first."""
        note = '' if self.pipeline else f'The error: {self.build_error}'
        build = SuspectedIssue(
            'dataset-build', {self.data.name: int(self.pipeline is None)}, note=note)
        issues = [build, *find_file_issues(self.sets, self.hashes, self.counts)]
        if self.counts:
            issues += find_label_issues(self.sets, self.counts)
        else:
            issues += [*find_object_issues(self.sets), find_empty_images(self.sets)]
        rare = find_rare_classes(self.statistics, 'images' if self.counts else 'objects')
        return [*issues, rare, find_huge_images(self.sets, self.hashes)]
