"""Metrics of several numbers of images, each evaluated by several gloo processes.

    python -m torch.distributed.run --nproc-per-node 3 tests/helpers/evaluate_shares.py DATA OUT
"""
from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from conftest import LAYOUTS, ROOT, config
from mmdet.structures import INSTANCE_OFFSET, DetDataSample
from mmengine.dist import is_main_process
from mmengine.registry import EVALUATOR
from mmengine.runner import Runner
from mmengine.structures import InstanceData, PixelData
from mmseg.structures import SegDataSample
from torch import distributed

from colonnade.engine.work_dir.metric_values import to_json_value
from colonnade.settings.reading import LaunchOptions, load_config

#: images, and whether the sampler repeats some: 1 and 3 do not divide by two, 1 and 4 not by three
CASES = ((1, True), (3, True), (4, False))


def predict(sample: DetDataSample | SegDataSample) -> DetDataSample | SegDataSample:
    """Add a prediction with errors that depend only on the image."""
    noise = torch.Generator().manual_seed(int(Path(sample.img_path).stem))
    if isinstance(sample, SegDataSample):
        labels = sample.gt_sem_seg.data
        wrong = torch.rand(labels.shape, generator=noise) < 0.3
        sample.pred_sem_seg = PixelData(data=torch.where(wrong, 0, labels))
        return sample
    truth = sample.gt_instances
    if 'gt_sem_seg' in sample:
        segments = sample.gt_sem_seg.sem_seg.long()
        for number, mask in enumerate(truth.masks.masks, 1):
            segments[0, torch.from_numpy(mask).bool()] += INSTANCE_OFFSET * number
        shift = int(torch.randint(1, 8, (), generator=noise))
        sample.pred_panoptic_seg = PixelData(sem_seg=segments.roll(shift, -1))
        return sample
    shape = truth.bboxes.tensor.shape
    sample.pred_instances = InstanceData(
        bboxes=truth.bboxes.tensor + torch.rand(shape, generator=noise) * 6,
        scores=torch.rand(len(truth), generator=noise),
        labels=truth.labels,
        masks=torch.from_numpy(truth.masks.masks).roll(1, -1).bool())
    return sample


def compute_metrics(cfg: Any, num_images: int, round_up: bool) -> dict[str, Any]:
    """Return the metrics of a config's test set on the first images."""
    loader = dict(cfg.test_dataloader, num_workers=0, persistent_workers=False)
    loader['dataset'] = dict(loader['dataset'], indices=num_images)
    loader['sampler'] = dict(loader['sampler'], round_up=round_up)
    batches = Runner.build_dataloader(loader, seed=0)
    metric = dict(cfg.test_evaluator, collect_device='cpu' if round_up else 'gpu')  # or by messages
    evaluator = EVALUATOR.build(dict(type='Evaluator', metrics=metric))
    evaluator.dataset_meta = batches.dataset.metainfo
    for batch in batches:
        evaluator.process([predict(sample) for sample in batch['data_samples']], batch)
    return to_json_value(evaluator.evaluate(len(batches.dataset)))


def compute_all_metrics(data: Path) -> dict[str, Any]:
    """Return metrics by head and number of images."""
    metrics = {}
    paths = {head: config(head) for head in ('mask_rcnn', 'sem_fpn')}
    paths['panoptic'] = ROOT / 'configs/pmt/xcit_nano_12_p16_slim_shapes_panoptic.py'
    for head, path in paths.items():
        cfg = load_config(LaunchOptions(path, data_root=data / LAYOUTS.get(head, 'coco')))
        if head == 'panoptic':  # annotations have the size of the image before it is resized
            cfg.test_dataloader.dataset.pipeline.insert(2, cfg.load_segments)
        for number, round_up in CASES:
            metrics[f'{head} {number}'] = compute_metrics(cfg, number, round_up)
    return metrics


def main() -> None:
    distributed.init_process_group('gloo')
    metrics = compute_all_metrics(Path(sys.argv[1]))
    if is_main_process():
        Path(sys.argv[2]).write_text(json.dumps(metrics))
    distributed.barrier()  # No process may exit while others communicate.
    distributed.destroy_process_group()


if __name__ == '__main__':
    main()
