"""Export of detectors: their graphs, and the steps of the runtime around them."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mmdet.models.detectors import (DINO, Mask2Former, RTMDet, TwoStageDetector,
                                    TwoStagePanopticSegmentor)
from mmengine.config import Config
from torch import nn

from colonnade.inference import Model

from .exporter import ExportOptions, ExportPlan
from .features import get_size_limits
from .graphs import ExportError, Graph, ImageSizeLimits
from .points import build_point_graphs
from .preprocessing import build_preprocess
from .queries import build_box_query_graphs, build_mask_query_graphs
from .two_stage import build_two_stage_graphs

GraphBuilder = Callable[[Any, ImageSizeLimits], tuple[list[Graph], dict[str, Any]]]
#: detector -> function that returns its graphs and the postprocessing of the runtime
DETECTORS: dict[type[nn.Module], GraphBuilder] = {
    TwoStageDetector: build_two_stage_graphs,
    RTMDet: build_point_graphs,
    DINO: build_box_query_graphs,
    Mask2Former: build_mask_query_graphs,
}


def build_plan(model: Model, cfg: Config, options: ExportOptions) -> ExportPlan:
    """Return the graphs of a detector.

    Raises:
        ExportError: If it cannot be exported.
    """
    module = model.module
    if isinstance(module, TwoStagePanopticSegmentor):
        raise ExportError(f'{type(module).__name__} cannot be exported: for panoptic segmentation, '
                          'the runtime supports only Mask2Former, EoMT and PMT')
    for cls, build_graphs in DETECTORS.items():
        if isinstance(module, cls):
            # The data preprocessor pads images before the graph.
            multiple = module.data_preprocessor.pad_size_divisor
            limits = replace(get_size_limits(module), multiple=multiple)
            graphs, postprocess = build_graphs(module, limits)
            task = 'panoptic' if postprocess['kind'] == 'panoptic_queries' else 'detection'
            return ExportPlan(task, tuple(graphs), build_preprocess(model, limits), postprocess)
    names = ', '.join(cls.__name__ for cls in DETECTORS)
    raise ExportError(f'{type(module).__name__} cannot be exported: expected one of {names}')
