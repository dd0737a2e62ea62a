"""The sections of the page."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

from colonnade.inference.drawing import Colour
from colonnade.settings.rules import RULES

from ..html_pages import Section, Table
from . import dataset_plots, dataset_tables
from .dataset_reader import ImageSet
from .issue_images import picture_of
from .issues import Suspicion
from .model_inputs import Fed, Feeder
from .statistics import LabelNumbers, Numbers, ObjectNumbers
from .thumbnails import LARGE, TILE, Scene, annotated

MOST_NAMES = 40  # of a legend


def legend_of(data: ImageSet, labels: set[int]) -> list[tuple[str, Colour]]:
    """Names and colours of classes; a label map's unlabelled pixels are black."""
    whole = [*zip(data.classes, data.palette, strict=True)]
    found = [whole[label] for label in sorted(labels) if label < len(whole)]
    rest = len(found) - MOST_NAMES
    if rest > 0:
        found = [*found[:MOST_NAMES], (f'and {rest} more', (255, 255, 255))]
    return [*found, ('unlabelled', (0, 0, 0))] if data.maps else found


def annotated_section(data: ImageSet, chosen: Sequence[int]) -> Section:
    """Images with their annotations as the files have them."""
    pictures, labels, errors = [], set(), []
    for index in chosen:
        try:
            scene = annotated(data, index, LARGE)
        except (OSError, ValueError) as error:
            errors.append([data.file(index), str(error)])
            continue
        pictures.append((f'{index}: {data.file(index)}{amount_text(scene)}',
                         scene.draw(data.classes, data.palette, captions=True)))
        labels |= labels_in(scene)
    crowds = '' if data.maps else ', crowds included'
    text = (f'{len(pictures)} of the {len(data):,} images of {data.name}, as the files have '
            f'them{crowds}. The number before a name is for --index.')
    return Section(
        'Annotations as they are',
        text=text,
        legend=legend_of(data, labels),
        pictures=pictures,
        tables=error_tables(errors))


def amount_text(scene: Scene) -> str:
    """How many objects there are."""
    if scene.label_map is not None:
        return ''
    number = len(scene.labels)
    return f', {number} object{"" if number == 1 else "s"}'


def labels_in(scene: Scene) -> set[int]:
    """The classes in a scene."""
    found = scene.labels if scene.label_map is None else scene.label_map
    return set(np.unique(found).tolist())


def error_tables(errors: Sequence[Sequence[str]]) -> list[Table]:
    """What could not be shown, if anything."""
    return [Table(['image', 'why it is not shown'], errors)] if errors else []


def fed_sections(data: ImageSet, chosen: Sequence[int], feeder: Feeder, draws: int,
                 seed: int) -> list[Section]:
    """The same images behind pipeline and preprocessor, several times each, and the tensors."""
    positions = feeder.positions([data.paths[index] for index in chosen])
    pictures, rows, errors = [], [], []
    for index in chosen:
        name, path = data.file(index), data.paths[index]
        if path not in positions:
            errors.append([name, 'the data set leaves it out: its filter_cfg says so'])
            continue
        try:
            scene = annotated(data, index, TILE)
            fed = [feeder.feed(positions[path], draw_seed(seed, index, n)) for n in range(draws)]
        except (OSError, ValueError) as error:
            errors.append([name, str(error)])
            continue
        original = scene.draw(data.classes, data.palette)
        pictures.append((f'{name}, as it is', in_tile(original)))
        for number, each in enumerate(fed, 1):
            drawn = each.draw(data.classes, data.palette, TILE)
            pictures.append((f'draw {number}: {about(each, path)}', in_tile(drawn)))
            rows.append(row_of(name, number, each))
    header = ['image', 'draw', 'shape', 'type', 'least', 'mean', 'most']
    shown = Section(
        'What the model is fed',
        text=fed_text(feeder, draws),
        pictures=pictures,
        tables=error_tables(errors))
    tensors = Table(header, rows, 'Numbers of each channel, as they enter the model.')
    return [shown, Section('The tensors', tables=[tensors], folded=True)] if rows else [shown]


def draw_seed(seed: int, index: int, draw: int) -> int:
    """The seed that an image is drawn by."""
    return int(np.random.SeedSequence([seed, index, draw]).generate_state(1)[0])


def fed_text(feeder: Feeder, draws: int) -> str:
    """What the section shows, and what looks wrong."""
    what = (f'{draws} draws of the training pipeline'
            if feeder.training else 'The pipeline of this split')
    parts = [
        f'{what}, then the data preprocessor. Mean and std are undone for the pictures. A pink '
        'line shows where padding begins.'
    ]
    if feeder.training:
        parts.append('Annotations are those that the losses get.')
    elif feeder.late:
        parts.append(
            'Annotations were resized with the image; evaluation compares at its own size.')
    if feeder.mixes:
        parts.append('Some steps put several images together: the whole set\'s, or those that '
                     'came before, of which there are few here.')
    if suspected := feeder.suspicions():
        parts.append(f'Suspected: {" ".join(map(str, suspected))}')
    return ' '.join(parts)


def about(fed: Fed, path: str) -> str:
    """What is special about a draw."""
    channels, height, width = fed.inputs.shape
    taken = fed.sample.metainfo.get('img_path', path)
    other = '' if taken == path else ', another image: the pipeline left nothing of this one'
    flipped = ', flipped' if fed.sample.metainfo.get('flip') else ''
    return f'{width} x {height}{flipped}{other}'


def row_of(name: str, number: int, fed: Fed) -> list[str]:
    """A row of the table of tensors."""
    values = [', '.join(f'{value:.2f}' for value in fed.per_channel(each))
              for each in ('amin', 'mean', 'amax')]  # yapf: disable
    shape = ' x '.join(map(str, fed.inputs.shape))
    return [name, str(number), shape, str(fed.inputs.dtype).removeprefix('torch.'), *values]


def in_tile(picture: Image.Image) -> Image.Image:
    """A picture in the middle of one of the width of a tile, so that four stand in a row."""
    whole = Image.new('RGB', (TILE, picture.height), 'white')
    whole.paste(picture, ((TILE - picture.width) // 2, 0))
    return whole


def overview_section(sets: Sequence[ImageSet], numbers: Sequence[Numbers],
                     found: Sequence[Suspicion], note: str) -> Section:
    """What there is, and how many of each kind look wrong."""
    names = [data.name for data in sets]
    across = [name for each in found for name in each.counts if name not in names]
    columns = [*names, *dict.fromkeys(across)]
    rows = [[each.title, *(each.counts.get(name) for name in columns)] for each in found]
    suspected = Table(['', *columns], rows,
                      'Suspected faults. Each is a reason to look, and need not be a mistake.')
    return Section(
        'Overview', text=note, tables=[dataset_tables.overview(sets, numbers), suspected])


def statistics_section(numbers: Sequence[Numbers], note: str) -> Section:
    """Plots of all splits."""
    objects = [found for found in numbers if isinstance(found, ObjectNumbers)]
    labels = [found for found in numbers if isinstance(found, LabelNumbers)]
    drawn = dataset_plots.of_objects(objects) if objects else dataset_plots.of_labels(labels)
    return Section('Statistics', text=note, plots=drawn)


def class_section(numbers: Sequence[Numbers]) -> Section:
    """The table of all classes."""
    amount = 'objects' if isinstance(numbers[0], ObjectNumbers) else 'pixels'
    return Section('All classes', tables=[dataset_tables.classes(numbers, amount)], folded=True)


def suspicion_sections(found: Sequence[Suspicion]) -> list[Section]:
    """A section for each kind that was found, with the worst of them."""
    sections = []
    for each in found:
        if not each.number or not (each.cases or each.note):
            continue
        rule, shown = RULES[each.rule], [case for case in each.cases if case.shows_image]
        pictures = [(case.message, picture_of(case)) for case in shown]
        others = [[case.message] for case in each.cases if not case.shows_image]
        sections.append(
            Section(
                f'Suspected: {rule.title}',
                text=f'{counts_text(each)}. {rule.meaning} {each.note or shown_text(each)}'.strip(),
                pictures=pictures,
                tables=[Table([''], others)] if others else []))
    return sections


def counts_text(found: Suspicion) -> str:
    """How many each split has."""
    return ', '.join(f'{name}: {number:,}' for name, number in found.counts.items() if number)


def shown_text(found: Suspicion) -> str:
    """How many of them are shown, where it is not all."""
    return '' if len(found.cases) == found.number else f'The worst {len(found.cases)} are shown.'
