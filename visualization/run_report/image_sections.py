"""The parts of a page with images: samples over time, and the worst."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..html_pages import Section
from .detections import SCORE
from .record_folder import Run, evaluation_folder, record_of
from .sample_images import opened

MOST_EVALUATIONS = 7  # whose samples are shown, beside the truth
MOST_NAMES = 30  # of classes in a legend


def sample_section(run: Run) -> list[Section]:
    """The fixed images at several evaluations."""
    drawn = run.drawn
    if not drawn:
        return []
    shown, best = thinned(drawn, run.best), run.best
    images = []
    for number, name in enumerate(drawn[-1]['samples']):
        tiles = [('truth', record_of(run.folder) / f'truth_{number}.jpg')]
        for each in shown:
            title = f'iteration {each["iteration"]}' + (' (best)' if each is best else '')
            folder = evaluation_folder(run.folder, each['iteration'])
            tiles.append((title, folder / f'sample_{number}.jpg'))
        if found := opened(tiles):
            images.append((name, found))
    text = 'Images of the validation set: its annotations, and what the model answered.'
    if len(shown) < len(drawn):
        text += f' {len(shown)} of {len(drawn)} evaluations are shown.'
    if others := sum(bool(each.get('samples')) for each in run.evaluations) - len(drawn):
        text += f' Left out: {others} of other images, before the validation data changed.'
    return [Section('Samples', text=text + drawn_text(run), tiles=images, legend=legend_of(run))]


def legend_of(run: Run) -> list[tuple[str, tuple[int, int, int]]]:
    """Classes and their colours, as far as a legend is of use."""
    colours = [tuple(each) for each in run.about.get('palette', ())]
    pairs = list(zip(run.about.get('classes', ()), colours, strict=False))
    return pairs if len(pairs) <= MOST_NAMES else []


def drawn_text(run: Run) -> str:
    """Which of a detector's answers are drawn."""
    kind = run.about.get('kind', 'labels')
    return '' if kind == 'labels' else f' Detections of a score of at least {SCORE} are drawn.'


def thinned(evaluations: Sequence[dict[str, Any]],
            best: dict[str, Any] | None,
            most: int = MOST_EVALUATIONS) -> list[dict[str, Any]]:
    """The first, the last, the best and some between, in their order."""
    if len(evaluations) <= most:
        return list(evaluations)
    last = len(evaluations) - 1
    chosen = {round(step * last / (most - 1)) for step in range(most)}
    places = [place for place, each in enumerate(evaluations) if each is best]
    if places and places[0] not in chosen:
        nearest = min(chosen - {0, last}, key=lambda place: abs(place - places[0]))
        chosen = chosen - {nearest} | {places[0]}
    return [evaluations[place] for place in sorted(chosen)]


def worst_section(run: Run, evaluation: dict[str, Any]) -> list[Section]:
    """The images that the model was worst at."""
    images = []
    for number, each in enumerate(evaluation.get('worst', ())):
        folder = evaluation_folder(run.folder, evaluation['iteration'])
        tiles = opened([('truth', folder / f'worst_{number}_truth.jpg'),
                        ('prediction', folder / f'worst_{number}.jpg')])
        if tiles:
            measure = f'mean IoU {each["miou"]:.2f}' if 'miou' in each else (
                f'F1 {each["f1"]:.2f}: {each["right"]} right, {each["missed"]} missed, '
                f'{each["wrong"]} wrong')
            images.append((f'{each["name"]}: {measure}', tiles))
    if not images:
        return []
    detector = 'f1' in evaluation['worst'][0]
    text = ('Those of lowest F1: twice the right detections, over objects plus detections. An '
            'object with a wrong class counts as missed, its detection as wrong.' if detector else
            'Those of lowest IoU, in the mean of the classes that are annotated in them.')
    return [Section('Worst images', text=text + drawn_text(run), tiles=images,
                    legend=legend_of(run))]  # yapf: disable
