"""From a config to the page of its data."""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colonnade.configs import find_config
from colonnade.settings.dataset_paths import check_dataset
from colonnade.settings.reading import LaunchOptions, load_config

from ..html_pages import build_sections, write_page
from ..options import BrowseOptions
from .browsed_data import BrowsedData, check_options
from .dataset_reader import select_images
from .issues import Issue
from .sections import SECTIONS
from .statistics import LabelStatistics, Statistics


@dataclass(frozen=True)
class BrowseResult:
    """What was found in a config's data.

    Attributes:
        page: Page that was written.
        statistics: Statistics of each split.
        issues: Issues of each rule, also without any breach.
    """
    page: Path
    statistics: list[Statistics]
    issues: list[Issue]

    def __str__(self) -> str:
        """Counts, and the suspected issues."""
        lines = []
        for split in self.statistics:
            unit = 'objects'
            if isinstance(split, LabelStatistics):
                unit = f'labelled pixels in {split.num_maps:,} label maps'
            lines.append(f'{split.name}: {split.num_images:,} images, '
                         f'{int(split.amounts.sum()):,} {unit}, {len(split.rank_classes())} of '
                         f'{len(split.classes)} classes')
        suspected = [issue for issue in self.issues if issue.count]
        lines.append('suspected faults:' if suspected else 'no suspected faults')
        lines += [f'  {issue.title}: {issue.format_counts()}' for issue in suspected]
        return '\n'.join(lines)


def browse(config: str | Path, **options: Any) -> BrowseResult:
    """Write a page that shows the data of a config, as ``tools/browse_dataset.py`` does.

    It sets the seeds of Python's, NumPy's and torch's random numbers.

    Args:
        config: Config file, or the name of a shipped config.
        **options: Attributes of :class:`BrowseOptions`.

    Raises:
        OSError: If a file of the dataset is missing, or the page exists or cannot be written.
        TypeError: If there is no such option.
        ValueError: If config, options and data do not fit each other.
    """
    return browse_dataset(BrowseOptions(Path(config), **options))


def browse_dataset(options: BrowseOptions) -> BrowseResult:
    """As :func:`browse`, with options of ``colonnade browse_dataset``."""
    check_options(options)
    cfg = load_config(
        LaunchOptions(
            find_config(options.config),
            cfg_options=options.cfg_options,
            data_root=options.data_root))
    check_dataset(cfg, tuple(f'{name}_dataloader' for name in options.splits))
    browsed = BrowsedData.read(cfg, options)
    browsed.chosen = select_images(
        browsed.data,
        num=options.num,
        indices=options.index,
        names=options.image,
        class_name=options.class_name,
        seed=options.seed)
    browsed.build_pipeline(cfg)
    about = ', '.join(f'{len(data):,} images of {data.name}' for data in browsed.sets)
    page = Path(options.out)
    sections = build_sections(SECTIONS, browsed)
    write_page(page, 'The data of a config', f'{options.config}: {about}', sections)
    return BrowseResult(page, browsed.statistics, browsed.issues)
