"""Page about the data of a config: its sections, and the function that writes it."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from colonnade.common.atomic_files import check_writable
from colonnade.common.errors import UserError
from colonnade.configs import find_config
from colonnade.inference.drawing import Color
from colonnade.settings.dataset_paths import check_dataset
from colonnade.settings.reading import LaunchOptions, load_config
from colonnade.settings.rules import RULES

from ..html_pages import Section, Table, build_sections, write_page
from ..html_pages.page import Cell, SectionTable, tabulate_facts
from ..options import BrowseOptions
from .browsed_data import BrowsedData
from .dataset_reader import ImageSet
from .issue_images import LARGE, TILE, draw_example, read_scene
from .issues import SuspectedIssue
from .statistics import LabelStatistics, Statistics, plot_statistics

MAX_NAMES = 40  # classes in a legend
MAX_CAPTIONS = 24  # objects of an image; more captions would hide it
SPLITS = ('train', 'val', 'test')
MIN_VALUES = dict(num=1, num_views=1, max_decoded=1, seed=0)


@dataclass(frozen=True)
class BrowseResult:
    """Statistics and suspected issues of a config's data.

    Attributes:
        page: Page that was written.
        statistics: Statistics of each split.
        issues: Suspected issues of each rule, including rules without breaches.
    """
    page: Path
    statistics: list[Statistics]
    issues: list[SuspectedIssue]

    def __str__(self) -> str:
        """Counts and suspected issues, as text."""
        lines = []
        for split in self.statistics:
            unit = 'objects'
            if isinstance(split, LabelStatistics):
                unit = f'labeled pixels in {split.num_maps:,} label maps'
            lines.append(f'{split.name}: {split.num_images:,} images, '
                         f'{int(split.amounts.sum()):,} {unit}, {len(split.rank_classes())} of '
                         f'{len(split.classes)} classes')
        suspected = [issue for issue in self.issues if issue.count]
        lines.append('suspected issues:' if suspected else 'no suspected issues')
        lines += [f'  {issue.title}: {issue.format_counts()}' for issue in suspected]
        return '\n'.join(lines)


def browse_dataset(config: str | Path, **options: Any) -> BrowseResult:
    """Write a page about the data of a config, like ``colonnade browse-dataset``.

    It seeds the random number generators of Python, NumPy and torch.

    Args:
        config: Config file, or the name of a shipped config.
        **options: Attributes of :class:`BrowseOptions`.

    Raises:
        OSError: If a file of the dataset is missing, or the page exists or cannot be written.
        TypeError: If an option does not exist.
        ValueError: If config, options and data do not fit together.
    """
    settings = BrowseOptions(Path(config), **options)
    page = Path(settings.out)
    for name, minimum in MIN_VALUES.items():
        if (value := vars(settings)[name]) < minimum:
            raise UserError(f'--{name.replace("_", "-")} must be at least {minimum}, got {value}')
    if settings.split not in SPLITS:
        raise UserError(f'--split must be one of {", ".join(SPLITS)}, got {settings.split!r}')
    if page.exists():
        raise UserError(f'{page} already exists: choose another --out, or remove it')
    check_writable(page)
    launch = LaunchOptions(
        find_config(settings.config),
        cfg_options=settings.cfg_options,
        data_root=settings.data_root)
    cfg = load_config(launch)
    check_dataset(cfg, tuple(f'{name}_dataloader' for name in settings.splits))
    browsed = BrowsedData.read(cfg, settings)
    about = ', '.join(f'{data.name}: {len(data):,} images' for data in browsed.sets)
    write_page(page, 'Dataset', f'{settings.config} ({about})', build_sections(SECTIONS, browsed))
    return BrowseResult(page, browsed.statistics, browsed.issues)


def build_overview_sections(browsed: BrowsedData) -> list[Section]:
    """Return counts of each split, and the number of breaches of each rule."""
    contents = tabulate_facts({
        data.name: split.describe() | {reason: f'{n:,}' for reason, n in data.left_out.items()}
        for data, split in zip(browsed.sets, browsed.statistics, strict=True)
    }, '0')  # yapf: disable
    names = [data.name for data in browsed.sets]
    names += dict.fromkeys(n for each in browsed.issues for n in each.counts if n not in names)
    suspected = Table(['', *names], [[each.title, *(each.counts.get(name) for name in names)]
                                     for each in browsed.issues],
                      'Suspected issues to review. Some may not be mistakes.')
    return [Section('Overview', browsed.limit_note, tables=[contents, suspected])]


def build_annotation_sections(browsed: BrowsedData) -> list[Section]:
    """Return images with their annotations as the files have them."""
    data, images, labels, errors = browsed.data, [], set[int](), []
    for index in browsed.chosen:
        try:
            scene = read_scene(data, index, LARGE)
        except (OSError, ValueError) as error:
            errors.append([data.get_file_name(index), str(error)])
            continue
        count, text, captions = len(scene.labels), '', None
        if scene.label_map is None:
            text = f', {count} object{"" if count == 1 else "s"}'
            if count <= MAX_CAPTIONS:
                captions = [data.classes[label] for label in scene.labels]
        drawing = scene.draw(data.palette, captions)
        images.append((f'{index}: {data.get_file_name(index)}{text}', drawing))
        labels |= scene.classes
    crowds = '' if data.maps else ', including crowds'
    text = (f'{len(images)} of the {len(data):,} images of {data.name}, annotated as in the '
            f'files{crowds}. Pass the number before a name to --index to see only that image.')
    return [Section('Annotations in the files', text, tables=list_errors(errors),
                    legend=build_class_legend(data, labels), images=images)]  # yapf: disable


def build_class_legend(data: ImageSet, labels: set[int]) -> list[tuple[str, Color]]:
    """Return names and colors of classes; unlabeled pixels of label maps are black."""
    classes = list(zip(data.classes, data.palette, strict=True))
    legend = [classes[label] for label in sorted(labels) if label < len(classes)]
    if (others := len(legend) - MAX_NAMES) > 0:
        legend = [*legend[:MAX_NAMES], (f'and {others} more', (255, 255, 255))]
    return [*legend, ('unlabeled', (0, 0, 0))] if data.maps else legend


def list_errors(errors: Sequence[Sequence[str]]) -> list[Table]:
    """Return a table of images that cannot be shown, if there are any."""
    return [Table(['image', 'error'], errors)] if errors else []


def build_input_sections(browsed: BrowsedData) -> list[Section]:
    """Return several augmented views of each image as the model receives them, and the tensors."""
    data, pipeline, options = browsed.data, browsed.pipeline, browsed.options
    if pipeline is None:
        return []
    num_views = options.num_views if pipeline.training else 1
    indices = pipeline.find_indices([data.paths[index] for index in browsed.chosen])
    images, rows, errors = [], [], []
    for index in browsed.chosen:
        name, path = data.get_file_name(index), data.paths[index]
        if path not in indices:
            errors.append([name, 'filtered out by filter_cfg of the dataset'])
            continue
        try:
            scene = read_scene(data, index, TILE)
            inputs = [pipeline.load(indices[path], derive_seed(options.seed, index, view))
                      for view in range(num_views)]  # yapf: disable
        except (OSError, ValueError) as error:
            errors.append([name, str(error)])
            continue
        images.append((f'{name}, original', center_in_tile(scene.draw(data.palette))))
        for number, each in enumerate(inputs, 1):
            drawing = center_in_tile(each.draw(data.palette, TILE, data.num_things))
            images.append((f'view {number}: {each.describe(path)}', drawing))
            rows.append([name, str(number), *each.describe_tensor()])
    section = Section('Model inputs', pipeline.describe(num_views), images=images,
                      tables=list_errors(errors))  # yapf: disable
    header = ['image', 'view', 'shape', 'type', 'minimum', 'mean', 'maximum']
    tensors = Table(header, rows, 'Values of each channel after the data preprocessor.')
    return [section, Section('Tensors', tables=[tensors], folded=True)] if rows else [section]


def derive_seed(seed: int, index: int, view: int) -> int:
    """Return the seed of an image's augmented view."""
    return int(np.random.SeedSequence([seed, index, view]).generate_state(1)[0])


def center_in_tile(image: Image.Image) -> Image.Image:
    """Return an image of the width of a tile, so that four fit in a row."""
    tile = Image.new('RGB', (TILE, image.height), 'white')
    tile.paste(image, ((TILE - image.width) // 2, 0))
    return tile


def build_statistics_sections(browsed: BrowsedData) -> list[Section]:
    """Return plots of all splits, and a table of all classes."""
    splits = browsed.statistics
    unit = 'pixels' if browsed.counts else 'objects'
    header = ['class']
    for split in splits:
        header += [f'{split.name}: {unit}', '%', 'images']
    rows = []
    for index in np.argsort(-splits[0].amounts, kind='stable').tolist():
        row: list[Cell] = [splits[0].classes[index]]
        for split in splits:
            count = int(split.amounts[index])
            percent = 100 * count / max(int(split.amounts.sum()), 1)
            row += [count, round(percent, 2), int(split.images[index])]
        missing = [split.name for split in splits if not split.amounts[index]]
        rows.append([*row, f'none in {" and ".join(missing)}' if missing else ''])
    table = Table([*header, ''], rows, 'All classes, most frequent first.')
    note = browsed.limit_note if browsed.counts else ''
    return [
        Section('Statistics', note, plot_statistics(splits)),
        Section('All classes', tables=[table], folded=True)
    ]


def build_issue_sections(browsed: BrowsedData) -> list[Section]:
    """Return a section for each rule with breaches, with examples of the worst."""
    sections = []
    for issue in browsed.issues:
        if not issue.count or not (issue.examples or issue.note):
            continue
        note = issue.note
        if not note and len(issue.examples) < issue.count:
            note = f'The worst {len(issue.examples)} are shown.'
        rule = RULES[issue.rule]
        text = f'{issue.format_counts()}. {rule.meaning} {note}'.strip()
        images = [(each.message, draw_example(each)) for each in issue.examples if each.is_drawn]
        others = [[each.message] for each in issue.examples if not each.is_drawn]
        tables = [Table([''], others)] if others else []
        sections.append(Section(f'Suspected: {rule.title}', text, tables=tables, images=images))
    return sections


#: parts of the page from top to bottom
SECTIONS: SectionTable[BrowsedData] = {
    'Overview': build_overview_sections,
    'Annotations in the files': build_annotation_sections,
    'Model inputs': build_input_sections,
    'Statistics': build_statistics_sections,
    'Suspected issues': build_issue_sections,
}
