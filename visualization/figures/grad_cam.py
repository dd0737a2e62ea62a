"""Grad-CAM (Selvaraju et al., arXiv 1610.02391) of detectors and segmenters.

Shapes: ``C`` channels, ``h, w`` a map's height and width, ``K`` classes.
"""
from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from colonnade.common.errors import UserError
from colonnade.common.name_lists import format_names
from colonnade.inference.model import Model

from .activations import FeatureMaps, NamedMap, Seen, named_maps, record_maps
from .attention import Draw, Images
from .figure_options import Options
from .layout import Drawing, Panel, PanelRow
from .scales import Scale

logger = logging.getLogger(__name__)
MAX_TARGETS = 3  # of a figure, if none is chosen


class Score(NamedTuple):
    """What is differentiated.

    Attributes:
        name: The class.
        label: The class and how certain or frequent it is.
        value: A scalar with a graph.
        present: Whether it was predicted.
        box: Box of the detection, in pixels of the image as it is seen.
    """
    name: str
    label: str
    value: Tensor
    present: bool = True
    box: tuple[float, float, float, float] | None = None


class WithoutDetach(TorchFunctionMode):
    """Keeps ``detach()`` from stopping gradients: mmdet's one-stage heads detach predictions."""

    def __torch_function__(self,
                           func: Callable,
                           types: Any,
                           args: tuple = (),
                           kwargs: dict | None = None) -> Any:
        if func is Tensor.detach:
            return args[0]
        return func(*args, **(kwargs or {}))


def grad_cam(values: Tensor, gradients: Tensor) -> Tensor:
    """Return ``ReLU(sum_k a_k A_k)``, ``(h, w)``, not normalized (Eqs. 1 and 2).

    Args:
        values: Feature map A, ``(1, C, h, w)``.
        gradients: Gradients of the score; ``a_k`` is their mean in channel k.
    """
    weights = gradients.mean(dim=(2, 3), keepdim=True)
    return (weights * values).sum(dim=1)[0].relu()


def detection_scores(model: Model, seen: Seen) -> list[Score]:
    """Return the score of each detection, the highest first.

    Gradients pass through pyramid and heads: not through the coordinates of proposals, which mmdet
    detaches, nor through the choice of what is kept.
    """
    sample, = model.module.predict(seen.inputs, seen.samples, rescale=False)
    lacks_graph = torch.is_grad_enabled() and not sample.pred_instances.scores.requires_grad
    if len(sample.pred_instances) and lacks_graph:
        with WithoutDetach():
            sample, = model.module.predict(seen.inputs, seen.samples, rescale=False)
    found = sample.pred_instances
    scores = []
    for index in found.scores.detach().argsort(descending=True).tolist():
        name, value = model.classes[int(found.labels[index])], found.scores[index]
        box = tuple(found.bboxes[index].detach().float().tolist())
        scores.append(Score(name, f'{name} {float(value.detach()):.2f}', value, box=box))
    return scores


def class_scores(model: Model, seen: Seen) -> list[Score]:
    """Return the mean logit over the image's pixels of each class, the most frequent first.

    Logits are those of the whole image, also where the config tests by sliding windows. Those of
    Mask2Former are its sums of probabilities (class times mask).
    """
    metas = [sample.metainfo for sample in seen.samples]
    height, width = seen.image.shape[:2]
    logits = model.module.encode_decode(seen.inputs, metas)[0, :, :height, :width]  # (K, h, w)
    if len(logits) == 1:  # of the second of two classes
        logits = torch.cat((-logits, logits))
    pixels = torch.bincount(logits.argmax(0).flatten(), minlength=len(logits)).tolist()
    scores = []
    for index in sorted(range(len(logits)), key=lambda index: -pixels[index]):
        name, share = model.classes[index], pixels[index] / sum(pixels)
        label = f'{name} {share:.0%}' if share >= 0.005 else f'{name} < 1%'
        scores.append(Score(name, label, logits[index].mean(), share > 0))
    return scores


def chosen_scores(scores: list[Score], target: str | int | None) -> list[Score]:
    """Return the scores of the target, if it exists; without a target the first few."""
    if target is None:
        return [score for score in scores if score.present][:MAX_TARGETS]
    if isinstance(target, int):
        return scores[target:target + 1]
    return [score for score in scores if score.name == target][:1]


def check_target(model: Model, target: str | int | None) -> str | int | None:
    """Return the target, an integer where a detection is meant.

    Raises:
        ValueError: If it is neither a class nor a detection.
    """
    if target is None or target in model.classes:
        return target
    of_detections = model.kind != 'labels'
    if of_detections and str(target).isdecimal():
        return int(target)
    also = ' or the number of a detection' if of_detections else ''
    near = get_close_matches(str(target), model.classes, n=3)
    classes = format_names(model.classes)
    there = f'did you mean {" or ".join(near)}?' if near else f'it has {classes}'
    raise UserError(f'{target} is no class of the model{also}; {there}')


def require_target(model: Model, target: str | int, images: Iterable[Seen]) -> None:
    """Raise a ValueError if no image has such a detection."""
    found = []
    for seen in images:
        with torch.no_grad():
            scores = detection_scores(model, seen)
        if chosen_scores(scores, target):
            return
        found.append(f'{len(scores)} in {seen.name}')
    raise UserError(f'{describe_absence(target)}; there are {format_names(found)}')


def describe_absence(target: str | int | None) -> str:
    """Return the message that a detection, or any, does not exist."""
    if target is None:
        return 'there is no detection'
    if isinstance(target, int):
        return f'there is no detection {target}, counted from 0'
    return f'there is no detection of {target}'


def maps_and_scores(model: Model, seen: Seen) -> tuple[FeatureMaps, list[Score]]:
    """Return the feature maps, and what can be differentiated by them."""
    scores_of = class_scores if model.kind == 'labels' else detection_scores
    with torch.enable_grad(), record_maps(model.module, as_leaves=True) as maps:
        return maps, scores_of(model, seen)


def grad_cam_panels(model: Model, options: Options, images: Images) -> Draw:
    """Grad-CAM of detections or classes, at each tap and level that the score depends on.

    Raises:
        ValueError: If the target is no class, and no number of a detection; or no image has it.
    """
    target = check_target(model, options.target)
    if target is not None and model.kind != 'labels':
        require_target(model, target, images())

    def draw(seen: Seen) -> Drawing:
        maps, scores = maps_and_scores(model, seen)
        rows = [
            PanelRow(score.label, panels_of(named_maps(model, maps, seen), score))
            for score in chosen_scores(scores, target)
        ]
        what = 'score of a detection' if model.kind != 'labels' else 'mean logit of a class'
        if not rows:
            what = describe_absence(target)
            if target is not None:
                logger.warning('%s: %s; there are %d', seen.name, what, len(scores))
        scale = Scale('share of the maximum', 0., 1., 'YlOrRd', transparent=True)
        return Drawing(f'Grad-CAM: {what}', seen.image, rows, scale, nearest=options.nearest)

    return draw


def panels_of(maps: list[NamedMap], score: Score) -> list[Panel]:
    """Return a panel for each map that the score depends on, divided by its maximum."""
    gradients = torch.autograd.grad(
        score.value, [each.values for each in maps], retain_graph=True, allow_unused=True)
    panels = []
    for each, gradient in zip(maps, gradients, strict=True):
        if gradient is None or not gradient.any():
            continue
        found = grad_cam(each.values.detach(), gradient).float().cpu().numpy()
        found = found / (np.max(found) or 1.)
        panels.append(Panel(found, each.name, each.stride, over_image=True, box=score.box))
    return panels
