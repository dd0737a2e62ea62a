"""Models that predict masks by queries, with random weights, and their exports in torch."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.registry import MODELS, DefaultScope
from torch import nn

from colonnade import runtime
from colonnade.configs import find_config
from colonnade.export import ExportOptions, Graph
from colonnade.export.detectors import build_plan as plan_detector
from colonnade.export.segmenters import build_plan as plan_segmenter
from colonnade.inference import Model
from colonnade.runtime.metadata import Graph as GraphFile
from colonnade.runtime.metadata import Section
from colonnade.runtime.results import number_segments
from colonnade.settings.reading import read_config

XCIT, PLAIN = 'xcit_nano_12_p16_slim_shapes', 'plain_vit_nano_12_slim_shapes'
LEAVES = dict(
    mask2former=XCIT, pmt=XCIT, pmt_semantic=XCIT, eomt=PLAIN, eomt_semantic=PLAIN)  # yapf: disable
#: options of a Mask2Former with things and stuff
STUFF = {
    'model.panoptic_head.num_stuff_classes': 1,
    'model.panoptic_head.loss_cls.class_weight': [1.] * 4 + [0.1],
    'model.panoptic_fusion_head.num_stuff_classes': 1,
}
#: options of all panoptic models, whose random scores and masks are low
PANOPTIC = {
    'model.test_cfg.panoptic_on': True,
    'model.test_cfg.object_mask_thr': 0.4,
    'model.test_cfg.iou_thr': 0.1,
}
STDS = {  # standard deviation of weights, so that scores and masks of queries differ
    'class_head.weight': 0.7, 'cls_embed.weight': 2., 'mask_head.4.weight': 1.,
    'mask_embed.4.weight': 1., 'q.weight': 3., 'query_feat.weight': 10., 'query_embed.weight': 10.,
}  # yapf: disable


def build_query_model(head: str, *, panoptic: bool = False, **options: Any) -> Model:
    """Build a slim config of a head on a small backbone; options of the config have dots."""
    torch.manual_seed(0)
    has_config = panoptic and head != 'mask2former'
    cfg = read_config(find_config(f'{head}/{LEAVES[head]}{"_panoptic" * has_config}'))
    if panoptic:
        cfg.merge_from_dict(PANOPTIC if has_config else PANOPTIC | STUFF)
    cfg.merge_from_dict(options)
    settings = cfg.model
    part = settings.get('panoptic_head') or settings.decode_head
    if 'num_query_blocks' in settings.backbone:
        settings.backbone.arch.update(embed_dim=32, depth=4, num_heads=2)
        part.in_channels = 32
    else:
        settings.backbone.arch = dict(embed_dim=32, depth=1, num_heads=2, patch_size=16)
        settings.backbone.out_indices = [0] * 4
        if settings.neck:
            settings.neck.in_channels = 32
        part.in_channels = [32] * 4 if settings.neck else 32
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        module = MODELS.build(settings).eval()
    module.init_weights()
    with torch.no_grad():
        for name, value in module.named_parameters():
            for end, std in STDS.items():
                if name.endswith(end):
                    value.normal_(std=std)
    num = 4 if 'decode_head' in settings else settings.panoptic_head.num_things_classes + \
        settings.panoptic_head.num_stuff_classes
    return Model(module.requires_grad_(False), cfg, tuple('abcd'[:num]), ((0, 0, 0), ) * num, '')


class TorchSession:
    """Session of the runtime that runs the module of a graph instead of its file."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def run(self, outputs: list[str], feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        with torch.inference_mode():
            values = self._module(*map(torch.from_numpy, feeds.values()))
        values = values if isinstance(values, tuple) else (values, )
        return [value.numpy() for value in values]


def run_in_torch(model: Model) -> runtime.Model:
    """Return the export of a model with its pre- and postprocessing, whose graphs run in torch."""
    plan = (plan_segmenter if model.kind == 'labels' else plan_detector)(model, model.cfg,
                                                                         ExportOptions())
    about = dict(task=plan.task, graphs={graph.name: {} for graph in plan.graphs},
                 preprocess=plan.preprocess, postprocess=plan.postprocess,
                 classes=model.classes, palette=model.palette)  # yapf: disable

    def describe(graph: Graph) -> GraphFile:
        return GraphFile(Path(graph.name), graph.input_names, graph.output_names)

    return runtime.Model(
        Section(json.loads(json.dumps(about)),
                Path('model.json')), {graph.name: describe(graph)
                                      for graph in plan.graphs},
        {graph.name: TorchSession(graph.module)
         for graph in plan.graphs})


def check_same_segments(model: Model, exported: runtime.Model, image: np.ndarray) -> int:
    """Compare predicted segments with those of mmdet, and return their number."""
    sample, = model.run([model.prepare(image)])
    codes = sample.pred_panoptic_seg.sem_seg[0].numpy()
    segments, labels = number_segments(codes, len(model.classes))
    found = exported.predict(image)
    assert isinstance(found, runtime.PanopticMap)
    assert (found.size, found.num_things) == (image.shape[:2], 3)
    assert (found.segments.dtype, found.labels.dtype) == (np.int32, np.int64)
    assert found.labels.tolist() == labels.tolist()
    assert (found.segments != segments).mean() < 1e-3
    return len(labels)
