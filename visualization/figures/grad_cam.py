"""Grad-CAM (Selvaraju et al., arXiv 1610.02391) of detectors and segmenters.

Shapes: ``C`` channels, ``h, w`` height and width of a map, ``K`` classes.
"""
from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from colonnade.common.errors import UserError
from colonnade.common.name_lists import format_names, suggest_names
from colonnade.inference.model import Model

from ..options import VisualizationOptions
from .attention import Drawer, Images
from .figure_inputs import FeatureMaps, NamedMap, PreparedImage, name_maps, record_maps
from .layout import Drawing, Panel, Scale

logger = logging.getLogger(__name__)
MAX_TARGETS = 3  # targets of a figure if none is chosen


class Score(NamedTuple):
    """Score of a class or a detection, which is differentiated."""
    name: str  # class
    label: str  # class, and its score or frequency
    value: Tensor  # scalar with a graph
    is_predicted: bool = True
    box: tuple[float, float, float, float] | None = None  # in pixels of the prepared image


class WithoutDetach(TorchFunctionMode):
    """Mode in which ``detach()`` does nothing; mmdet's one-stage heads detach predictions."""

    def __torch_function__(self,
                           func: Callable,
                           types: Any,
                           args: tuple = (),
                           kwargs: dict | None = None) -> Any:
        if func is Tensor.detach:
            return args[0]
        return func(*args, **(kwargs or {}))


def compute_grad_cam(values: Tensor, gradients: Tensor) -> Tensor:
    """Return ``ReLU(sum_k a_k A_k)``, ``(h, w)``, without normalization (Eqs. 1 and 2).

    ``A`` are the values ``(1, C, h, w)``, and ``a_k`` is the mean of the gradients in channel k.
    """
    weights = gradients.mean(dim=(2, 3), keepdim=True)
    return (weights * values).sum(dim=1)[0].relu()


def score_detections(model: Model, image: PreparedImage) -> list[Score]:
    """Return the score of each detection, in descending order.

    Gradients pass through pyramid and heads, but not through the coordinates of proposals, which
    mmdet detaches, nor through the selection of detections.
    """
    sample, = model.module.predict(image.inputs, image.samples, rescale=False)
    lacks_graph = torch.is_grad_enabled() and not sample.pred_instances.scores.requires_grad
    if len(sample.pred_instances) and lacks_graph:
        with WithoutDetach():
            sample, = model.module.predict(image.inputs, image.samples, rescale=False)
    found = sample.pred_instances
    scores = []
    for index in found.scores.detach().argsort(descending=True).tolist():
        name, value = model.classes[int(found.labels[index])], found.scores[index]
        box = tuple(found.bboxes[index].detach().float().tolist())
        scores.append(Score(name, f'{name} {float(value.detach()):.2f}', value, box=box))
    return scores


def score_classes(model: Model, image: PreparedImage) -> list[Score]:
    """Return the mean logit of each class over all pixels, the most frequent class first.

    Logits are computed on the full image, even if the config tests by sliding windows. Those of
    Mask2Former are its sums of probabilities (class times mask).
    """
    metas = [sample.metainfo for sample in image.samples]
    height, width = image.pixels.shape[:2]
    logits = model.module.encode_decode(image.inputs, metas)[0, :, :height, :width]  # (K, h, w)
    if len(logits) == 1:  # Binary segmenters have the logit of the second class only.
        logits = torch.cat((-logits, logits))
    pixels = torch.bincount(logits.argmax(0).flatten(), minlength=len(logits)).tolist()
    scores = []
    for index in sorted(range(len(logits)), key=lambda index: -pixels[index]):
        name, share = model.classes[index], pixels[index] / sum(pixels)
        label = f'{name} {share:.0%}' if share >= 0.005 else f'{name} < 1%'
        scores.append(Score(name, label, logits[index].mean(), share > 0))
    return scores


def select_scores(scores: list[Score], target: str | int | None) -> list[Score]:
    """Return the score of the target if it exists, or the first few without a target."""
    if target is None:
        return [score for score in scores if score.is_predicted][:MAX_TARGETS]
    if isinstance(target, int):
        return scores[target:target + 1]
    return [score for score in scores if score.name == target][:1]


def check_target(model: Model, target: str | int | None) -> str | int | None:
    """Return the target, as an integer if it is the index of a detection."""
    if target is None or target in model.classes:
        return target
    is_detector = model.kind != 'labels'
    if is_detector and str(target).isdecimal():
        return int(target)
    wrong = 'neither a class of the model nor an index of a detection' if is_detector else \
        'not a class of the model'
    hint = suggest_names(str(target), model.classes, count=3) or \
        f'expected one of {format_names(model.classes)}'
    raise UserError(f'target {target!r} is {wrong}: {hint}')


def require_target(model: Model, target: str | int, images: Iterable[PreparedImage]) -> None:
    """Raise an error if no image has such a detection."""
    counts = []
    for image in images:
        with torch.no_grad():
            scores = score_detections(model, image)
        if select_scores(scores, target):
            return
        counts.append(f'{len(scores)} in {image.name}')
    raise UserError(f'{describe_absence(target)}; detections: {format_names(counts)}')


def describe_absence(target: str | int | None) -> str:
    """Return the message that a detection, or any, does not exist."""
    if target is None:
        return 'no detections'
    return f'no detection with index {target}' if isinstance(target, int) else \
        f'no detection of class {target!r}'


def compute_maps_and_scores(model: Model, image: PreparedImage) -> tuple[FeatureMaps, list[Score]]:
    """Return the feature maps, and scores that can be differentiated with respect to them."""
    score = score_classes if model.kind == 'labels' else score_detections
    with torch.enable_grad(), record_maps(model.module, as_leaves=True) as maps:
        return maps, score(model, image)


def make_grad_cam_drawer(model: Model, options: VisualizationOptions, images: Images) -> Drawer:
    """Draw Grad-CAM of detections or classes at each feature map that the score depends on."""
    target = check_target(model, options.target)
    if target is not None and model.kind != 'labels':
        require_target(model, target, images())

    def draw(image: PreparedImage) -> Drawing:
        maps, scores = compute_maps_and_scores(model, image)
        named = name_maps(model, maps, image)
        rows = [(score.label, draw_score(named, score))
                for score in select_scores(scores, target)]  # yapf: disable
        what = 'score of a detection' if model.kind != 'labels' else 'mean logit of a class'
        if not rows:
            what = describe_absence(target)
            if target is not None:
                logger.warning('%s: %s; detections: %d', image.name, what, len(scores))
        scale = Scale('share of the maximum', 0., 1., 'YlOrRd', is_transparent=True)
        return Drawing(f'Grad-CAM: {what}', image.pixels, rows, scale,
                       interpolation=options.interpolation)  # yapf: disable

    return draw


def draw_score(maps: list[NamedMap], score: Score) -> list[Panel]:
    """Return a panel for each map that the score depends on, divided by its maximum."""
    gradients = torch.autograd.grad(
        score.value, [each.values for each in maps], retain_graph=True, allow_unused=True)
    panels = []
    for each, gradient in zip(maps, gradients, strict=True):
        if gradient is not None and gradient.any():
            cam = compute_grad_cam(each.values.detach(), gradient).float().cpu().numpy()
            cam = cam / (np.max(cam) or 1.)
            panels.append(Panel(cam, each.name, each.stride, is_over_image=True, box=score.box))
    return panels
