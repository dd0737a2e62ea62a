"""Sections with images: samples over time, and the worst."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..html_pages import Section
from .detections import MIN_SCORE
from .record_folder import Evaluation, RecordedRun, get_evaluation_folder, get_record_folder
from .sample_images import read_tiles

MAX_EVALUATIONS = 7  # whose samples are shown, next to the ground truth
MAX_NAMES = 30  # of classes in a legend


def build_sample_sections(run: RecordedRun) -> list[Section]:
    """Return the fixed images at several evaluations."""
    drawn = run.drawn
    if not drawn:
        return []
    shown = thin_evaluations(drawn, run.best)
    titles = [f'iteration {each["iteration"]}' + (' (best)' if each is run.best else '')
              for each in shown]  # yapf: disable
    samples = read_samples([(title, run, each)
                            for title, each in zip(titles, shown, strict=True)])  # yapf: disable
    text = 'Images of the validation set: its annotations, and what the model answered.'
    if len(shown) < len(drawn):
        text += f' {len(shown)} of {len(drawn)} evaluations are shown.'
    if others := sum(bool(each.get('samples')) for each in run.evaluations) - len(drawn):
        text += f' Left out: {others} of other images, before the validation data changed.'
    return [Section('Samples', text + describe_threshold(run), tiles=samples,
                    legend=build_legend(run))]  # yapf: disable


def read_samples(drawn: Sequence[tuple[str, RecordedRun, Evaluation]]) -> list[tuple[str, list]]:
    """Return each sample with its titled images: the ground truth, and predictions.

    Args:
        drawn: Title, run and evaluation of each prediction; all drew the same images.
    """
    samples = []
    for number, name in enumerate(drawn[-1][2]['samples']):
        paths = [('truth', get_record_folder(drawn[0][1].folder) / f'truth_{number}.jpg')]
        for title, run, evaluation in drawn:
            folder = get_evaluation_folder(run.folder, evaluation['iteration'])
            paths.append((title, folder / f'sample_{number}.jpg'))
        if tiles := read_tiles(paths):
            samples.append((name, tiles))
    return samples


def build_worst_sections(run: RecordedRun) -> list[Section]:
    """Return the images with the worst predictions."""
    images, worst = [], run.details.get('worst', ())
    for number, each in enumerate(worst):
        folder = get_evaluation_folder(run.folder, run.details['iteration'])
        tiles = read_tiles([('truth', folder / f'worst_{number}_truth.jpg'),
                            ('prediction', folder / f'worst_{number}.jpg')])
        if tiles:
            measure = f'mean IoU {each["miou"]:.2f}' if 'miou' in each else (
                f'F1 {each["f1"]:.2f}: {each["right"]} right, {each["missed"]} missed, '
                f'{each["wrong"]} wrong')
            images.append((f'{each["name"]}: {measure}', tiles))
    if not images:
        return []
    text = 'Those of lowest IoU, in the mean of the classes that are annotated in them.'
    if 'f1' in worst[0]:
        text = ('Those of lowest F1: twice the right detections, over objects plus detections. An '
                'object with a wrong class counts as missed, its detection as wrong.')
    return [Section('Worst images', text + describe_threshold(run), tiles=images,
                    legend=build_legend(run))]  # yapf: disable


def build_legend(run: RecordedRun) -> list[tuple[str, Any]]:
    """Return classes and their colors, or nothing if they are too many."""
    colors = [tuple(each) for each in run.about.get('palette', ())]
    pairs = list(zip(run.about.get('classes', ()), colors, strict=False))
    return pairs if len(pairs) <= MAX_NAMES else []


def describe_threshold(run: RecordedRun) -> str:
    """Return which detections are drawn, or nothing for a segmenter."""
    if run.about.get('kind', 'labels') == 'labels':
        return ''
    return f' Detections of a score of at least {MIN_SCORE} are drawn.'


def thin_evaluations(evaluations: Sequence[Evaluation],
                     best: Evaluation | None,
                     limit: int = MAX_EVALUATIONS) -> list[Evaluation]:
    """Return the first, the last, the best and some between, in their order."""
    if len(evaluations) <= limit:
        return list(evaluations)
    last = len(evaluations) - 1
    chosen = {round(step * last / (limit - 1)) for step in range(limit)}
    places = [place for place, each in enumerate(evaluations) if each is best]
    if places and places[0] not in chosen:
        nearest = min(chosen - {0, last}, key=lambda place: abs(place - places[0]))
        chosen = chosen - {nearest} | {places[0]}
    return [evaluations[place] for place in sorted(chosen)]
