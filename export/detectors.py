"""Whole detectors as graphs, with what the runtime does around them."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mmdet.models.detectors import DINO, Mask2Former, RTMDet, TwoStageDetector
from mmengine.config import Config
from torch import nn

from colonnade.inference import Model

from .exporter import ExportOptions, Plan
from .features import sides_of
from .graphs import ExportError, Graph, ImageSizeLimits
from .points import point_graphs
from .preprocessing import preprocess_of
from .queries import box_query_graphs, mask_query_graphs
from .two_stage import two_stage_graphs

Planner = Callable[[Any, ImageSizeLimits], tuple[list[Graph], dict[str, Any]]]
#: detector -> its graphs, and what the runtime does between and behind them
DETECTORS: dict[type[nn.Module], Planner] = {
    TwoStageDetector: two_stage_graphs,
    RTMDet: point_graphs,
    DINO: box_query_graphs,
    Mask2Former: mask_query_graphs,
}


def plan(model: Model, cfg: Config, options: ExportOptions) -> Plan:
    """Which graphs a detector becomes.

    Raises:
        ExportError: If it cannot be exported; says why.
    """
    module = model.module
    for kind, planner in DETECTORS.items():
        if isinstance(module, kind):
            # the data preprocessor has padded images before
            sides = ImageSizeLimits(module.data_preprocessor.pad_size_divisor,
                                    sides_of(module).least)
            graphs, postprocess = planner(module, sides)
            return Plan('detection', tuple(graphs), preprocess_of(model, sides), postprocess)
    names = ', '.join(kind.__name__ for kind in DETECTORS)
    raise ExportError(f'{type(module).__name__} cannot be exported: there are {names}')
