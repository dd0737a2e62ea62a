"""The sections of the page."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

from colonnade.inference.drawing import Color
from colonnade.settings.rules import RULES

from ..html_pages import Section, Table
from ..html_pages.page import Cell, SectionTable
from . import dataset_plots
from .annotated_images import LARGE, TILE, read_scene
from .browsed_data import BrowsedData
from .dataset_reader import ImageSet
from .issue_images import draw_case
from .model_inputs import InputPipeline, ModelInput
from .statistics import LabelStatistics, ObjectStatistics, Statistics

MAX_NAMES = 40  # of a legend
MAX_CAPTIONS = 24  # more hide the image
OBJECT_SIZES = ('small objects, below 32² pixels', 'medium objects',
                'large objects, from 96² pixels')


def build_overview_sections(browsed: BrowsedData) -> list[Section]:
    """Return what there is, and how many breaches of each rule."""
    sets, issues = browsed.sets, browsed.issues
    columns = [describe_split(*pair) for pair in zip(sets, browsed.statistics, strict=True)]
    rows = dict.fromkeys(name for column in columns for name in column)
    contents = Table(['', *(data.name for data in sets)],
                     [[name, *(column.get(name, '0') for column in columns)] for name in rows])
    names = [data.name for data in sets]
    names += dict.fromkeys(name for each in issues for name in each.counts if name not in names)
    suspected = Table(['', *names],
                      [[each.title, *(each.counts.get(name) for name in names)] for each in issues],
                      'Suspected faults. Each is a reason to look, and need not be a mistake.')
    return [Section('Overview', browsed.limit_note, tables=[contents, suspected])]


def describe_split(data: ImageSet, split: Statistics) -> dict[str, str]:
    """Return names and values of a split's facts."""
    facts = {'images': f'{len(data):,}'}
    if isinstance(split, ObjectStatistics):
        facts |= describe_objects(split)
    elif isinstance(split, LabelStatistics):
        unlabeled = split.total - int(split.amounts.sum())
        facts |= {
            'label maps counted': f'{split.num_maps:,}',
            'pixels': f'{split.total:,}',
            'share unlabelled': format_percent(unlabeled, split.total)
        }
    facts['classes'] = f'{len(data.classes)}'
    facts['classes that do not occur'] = f'{int((split.amounts == 0).sum())}'
    if len(split.sizes):
        area = split.sizes.prod(axis=1)
        for name, index in (('smallest', area.argmin()), ('largest', area.argmax())):
            width, height = split.sizes[index]
            facts[f'{name} image'] = f'{width} x {height}'
    return facts | {reason: f'{count:,}' for reason, count in data.left_out.items()}


def describe_objects(split: ObjectStatistics) -> dict[str, str]:
    """Return names and values that only sets of objects have."""
    total, per_image = len(split.areas), split.per_image
    facts = {
        'objects': f'{total:,}',
        'crowds, and objects to be ignored': f'{split.crowds:,}',
        'images without objects': f'{int((per_image == 0).sum()):,}'
    }
    if len(per_image):
        facts['objects of an image, mean'] = f'{per_image.mean():.1f}'
        facts['objects of an image, most'] = f'{per_image.max()}'
    for name, count in zip(OBJECT_SIZES, split.count_by_size(), strict=True):
        facts[name] = f'{count:,} ({format_percent(count, total)})'
    return facts


def format_percent(part: int, whole: int) -> str:
    """Return a share as text."""
    return f'{part / whole:.1%}' if whole else '–'


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
    crowds = '' if data.maps else ', crowds included'
    text = (f'{len(images)} of the {len(data):,} images of {data.name}, as the files have '
            f'them{crowds}. The number before a name is for --index.')
    return [Section('Annotations as they are', text, tables=list_errors(errors),
                    legend=build_class_legend(data, labels), images=images)]  # yapf: disable


def build_class_legend(data: ImageSet, labels: set[int]) -> list[tuple[str, Color]]:
    """Return names and colors of classes; a label map's unlabeled pixels are black."""
    classes = list(zip(data.classes, data.palette, strict=True))
    legend = [classes[label] for label in sorted(labels) if label < len(classes)]
    others = len(legend) - MAX_NAMES
    if others > 0:
        legend = [*legend[:MAX_NAMES], (f'and {others} more', (255, 255, 255))]
    return [*legend, ('unlabelled', (0, 0, 0))] if data.maps else legend


def list_errors(errors: Sequence[Sequence[str]]) -> list[Table]:
    """Return a table of what could not be shown, if anything."""
    return [Table(['image', 'why it is not shown'], errors)] if errors else []


def build_input_sections(browsed: BrowsedData) -> list[Section]:
    """Return the images after pipeline and preprocessor, several times each, and the tensors."""
    data, pipeline, options = browsed.data, browsed.pipeline, browsed.options
    if pipeline is None:
        return []
    draws = options.draws if pipeline.training else 1
    indices = pipeline.find_indices([data.paths[index] for index in browsed.chosen])
    images, rows, errors = [], [], []
    for index in browsed.chosen:
        name, path = data.get_file_name(index), data.paths[index]
        if path not in indices:
            errors.append([name, 'the data set leaves it out: its filter_cfg says so'])
            continue
        try:
            scene = read_scene(data, index, TILE)
            inputs = [pipeline.load(indices[path], derive_seed(options.seed, index, draw))
                      for draw in range(draws)]  # yapf: disable
        except (OSError, ValueError) as error:
            errors.append([name, str(error)])
            continue
        images.append((f'{name}, as it is', center_in_tile(scene.draw(data.palette))))
        for number, each in enumerate(inputs, 1):
            drawing = center_in_tile(each.draw(data.palette, TILE))
            images.append((f'draw {number}: {describe_input(each, path)}', drawing))
            rows.append([name, str(number), *describe_tensor(each)])
    shown = Section('What the model is fed', describe_pipeline(pipeline, draws), images=images,
                    tables=list_errors(errors))  # yapf: disable
    header = ['image', 'draw', 'shape', 'type', 'least', 'mean', 'most']
    tensors = Table(header, rows, 'Numbers of each channel, as they enter the model.')
    return [shown, Section('The tensors', tables=[tensors], folded=True)] if rows else [shown]


def derive_seed(seed: int, index: int, draw: int) -> int:
    """Return the seed of an image's augmented view."""
    return int(np.random.SeedSequence([seed, index, draw]).generate_state(1)[0])


def describe_pipeline(pipeline: InputPipeline, draws: int) -> str:
    """Return what the images show, and what looks wrong."""
    kind = 'The pipeline of this split'
    if pipeline.training:
        kind = f'{draws} draws of the training pipeline'
    text = (f'{kind}, then the data preprocessor. Mean and std are undone for the pictures. A '
            'pink line shows where padding begins.')
    if pipeline.training:
        text += ' Annotations are those that the losses get.'
    elif pipeline.late:
        text += ' Annotations were resized with the image; evaluation compares at its own size.'
    if pipeline.mixes:
        text += (" Some steps put several images together: the whole set's, or those that came "
                 'before, of which there are few here.')
    if issues := pipeline.find_issues():
        text += f' Suspected: {" ".join(map(str, issues))}'
    return text


def describe_input(model_input: ModelInput, path: str) -> str:
    """Return size and changes of a model input."""
    metainfo = model_input.sample.metainfo
    other = ', another image: the pipeline left nothing of this one'
    if metainfo.get('img_path', path) == path:
        other = ''
    height, width = model_input.inputs.shape[1:]
    return f'{width} x {height}{", flipped" if metainfo.get("flip") else ""}{other}'


def describe_tensor(model_input: ModelInput) -> list[str]:
    """Return shape, type and values of each channel."""
    inputs = model_input.inputs
    values = (inputs.float().amin((1, 2)), inputs.float().mean((1, 2)), inputs.float().amax((1, 2)))
    channels = [', '.join(f'{value:.2f}' for value in each.tolist()) for each in values]
    return [' x '.join(map(str, inputs.shape)), str(inputs.dtype).removeprefix('torch.'), *channels]


def center_in_tile(image: Image.Image) -> Image.Image:
    """Return an image of the width of a tile, so that four fit in a row."""
    tile = Image.new('RGB', (TILE, image.height), 'white')
    tile.paste(image, ((TILE - image.width) // 2, 0))
    return tile


def build_statistics_sections(browsed: BrowsedData) -> list[Section]:
    """Return plots of all splits."""
    objects = [split for split in browsed.statistics if isinstance(split, ObjectStatistics)]
    if objects:
        return [Section('Statistics', plots=dataset_plots.plot_objects(objects))]
    labels = [split for split in browsed.statistics if isinstance(split, LabelStatistics)]
    return [Section('Statistics', browsed.limit_note, dataset_plots.plot_labels(labels))]


def build_class_table(browsed: BrowsedData) -> list[Section]:
    """Return a table of all classes, the most frequent first."""
    splits = browsed.statistics
    unit = 'objects' if isinstance(splits[0], ObjectStatistics) else 'pixels'
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
    table = Table([*header, ''], rows, 'All classes, the most frequent first.')
    return [Section('All classes', tables=[table], folded=True)]


def build_issue_sections(browsed: BrowsedData) -> list[Section]:
    """Return a section for each rule with breaches, with the worst of them."""
    sections = []
    for issue in browsed.issues:
        if not issue.count or not (issue.cases or issue.note):
            continue
        note = issue.note
        if not note and len(issue.cases) < issue.count:
            note = f'The worst {len(issue.cases)} are shown.'
        rule = RULES[issue.rule]
        text = f'{issue.format_counts()}. {rule.meaning} {note}'.strip()
        images = [(case.message, draw_case(case)) for case in issue.cases if case.shows_image]
        others = [[case.message] for case in issue.cases if not case.shows_image]
        tables = [Table([''], others)] if others else []
        sections.append(Section(f'Suspected: {rule.title}', text, tables=tables, images=images))
    return sections


#: the page from top to bottom
SECTIONS: SectionTable[BrowsedData] = {
    'Overview': build_overview_sections,
    'Annotations as they are': build_annotation_sections,
    'What the model is fed': build_input_sections,
    'Statistics': build_statistics_sections,
    'All classes': build_class_table,
    'Suspected': build_issue_sections,
}
