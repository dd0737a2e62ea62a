"""Measure the cost of each backbone under each head, for docs/guides/choose_model.md.

    python docs/measure_models.py rows.json                        # takes hours on two cores
    python docs/measure_models.py rows.json --heads dino linear    # under some heads

Parameters and multiply-adds are those of tools/complexity.py, time and memory those of its --time:
random weights, one image, on the CPU. A call that was stopped goes on.
"""
from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from timm.models import get_pretrained_cfg

from colonnade.common.atomic_files import write_json
from colonnade.evaluation.benchmark.model_profile import measure_cost
from colonnade.models.complexity import build_from_file, iter_parts, sum_parts

DETECTION, SEGMENTATION = (800, 1216), (512, 512)  # height, width
CONFIGS = Path(__file__).resolve().parent.parent / 'configs'
WEIGHTS = {  # backbone, as leaves name it -> weights of timm
    'xcit_small_12_p16': 'xcit_small_12_p16_384.fb_dist_in1k',
    'cait_s24': 'cait_s24_384.fb_dist_in1k',
    'resmlp_s24': 'resmlp_24_224.fb_distilled_in1k',
    'deit3_small_patch16_224': 'deit3_small_patch16_224.fb_in22k_ft_in1k',
    'vit_small_patch14_dinov2': 'vit_small_patch14_dinov2.lvd142m',
    'vit_small_patch16_dinov3': 'vit_small_patch16_dinov3.lvd1689m',
    'deit3_base_patch16_224': 'deit3_base_patch16_224.fb_in22k_ft_in1k',
    'vit_base_patch14_dinov2': 'vit_base_patch14_dinov2.lvd142m',
    'vit_base_patch16_dinov3': 'vit_base_patch16_dinov3.lvd1689m',
    'vit_base_patch16_224_mae': 'vit_base_patch16_224.mae',
}


class Head(NamedTuple):
    """Suffix of the config names of a head, and image size."""
    recipe: str
    size: tuple[int, int]


HEADS = {  # by their folders
    'faster_rcnn': Head('3x_coco', DETECTION),
    'mask_rcnn': Head('3x_coco', DETECTION),
    'cascade_mask_rcnn': Head('3x_coco', DETECTION),
    'vitdet': Head('100ep_coco_lsj', DETECTION),
    'cascade_vitdet': Head('100ep_coco_lsj', DETECTION),
    'mask2former': Head('50ep_coco_lsj', DETECTION),
    'dino': Head('12ep_coco', DETECTION),
    'rtmdet_ins': Head('300ep_coco', DETECTION),
    'panoptic_fpn': Head('3x_coco_panoptic', DETECTION),
    'eomt': Head('24ep_coco_panoptic', DETECTION),
    'pmt': Head('24ep_coco_panoptic', DETECTION),
    'sem_fpn': Head('80k_ade20k', SEGMENTATION),
    'upernet': Head('160k_ade20k', SEGMENTATION),
    'mask2former_semantic': Head('160k_ade20k', SEGMENTATION),
    'segformer': Head('160k_ade20k', SEGMENTATION),
    'segmenter': Head('160k_ade20k', SEGMENTATION),
    'eomt_semantic': Head('16ep_ade20k', SEGMENTATION),
    'pmt_semantic': Head('40k_ade20k', SEGMENTATION),
    'linear': Head('40k_ade20k', SEGMENTATION),
}
PUBLISHED = {  # by the authors of the backbones, ViTDet, EoMT and PMT
    ('mask_rcnn', 'xcit_small_12_p16'): '45.3 / 40.8',
    ('sem_fpn', 'xcit_small_12_p16'): '43.9',
    ('upernet', 'xcit_small_12_p16'): '45.9',
    ('vitdet', 'vit_base_patch16_224_mae'): '51.6 / 45.9',
    ('cascade_vitdet', 'vit_base_patch16_224_mae'): '54.0 / 46.7',
    ('eomt', 'vit_small_patch16_dinov3'): 'PQ 47.2',
    ('eomt', 'vit_base_patch16_dinov3'): 'PQ 53.1',
    ('pmt', 'vit_small_patch16_dinov3'): 'PQ 45.3',
    ('pmt', 'vit_base_patch16_dinov3'): 'PQ 52.8',
}


def parse_args() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('out', type=Path, help='JSON of all rows; what is in it stays')
    parser.add_argument('--heads', nargs='+', choices=HEADS, default=list(HEADS))
    parser.add_argument('--backbones', nargs='+', choices=WEIGHTS, default=list(WEIGHTS))
    parser.add_argument(
        '--rounds', type=int, default=3, help='runs of which the median is taken; 0 counts alone')
    return parser.parse_args()


def leaf(head: str, backbone: str) -> Path:
    return CONFIGS / head / f'{backbone}_{HEADS[head].recipe}.py'


def padded(size: tuple[int, int], divisor: int) -> tuple[int, int]:
    """Return the padded image size of a config, except for squares of large-scale jitter."""
    height, width = (-(-side // divisor) * divisor for side in size)
    return (height, width) if divisor < 1000 else size


def measure(head: str, backbone: str, rounds: int) -> dict[str, float]:
    """Parameters and multiply-adds of a config's model, with ``rounds`` seconds and peak MiB."""
    model, cfg = build_from_file(leaf(head, backbone))
    size = padded(HEADS[head].size, cfg.model.data_preprocessor.get('pad_size_divisor', 1))
    whole = sum_parts(list(iter_parts(model, *size)))
    row: dict[str, float] = dict(
        parameters=whole.parameters, multiply_adds=whole.multiply_adds or 0)
    if rounds:
        cost = measure_cost(leaf(head, backbone), size, rounds=rounds)
        row |= dict(seconds=cost.seconds, memory=cost.memory)
    return row


def iter_backbone_rows() -> Iterator[tuple]:
    """Yield the rows of docs/backbone_costs.csv: each backbone at 512 x 512."""
    yield 'backbone', 'parameters', 'multiply-adds', 'weights', 'license'
    for backbone, weights in WEIGHTS.items():
        head = next(head for head in reversed(HEADS) if leaf(head, backbone).exists())
        model, _ = build_from_file(leaf(head, backbone))
        part = next(iter_parts(model, 512, 512))
        yield (backbone, f'{part.parameters / 1e6:.1f}', f'{(part.multiply_adds or 0) / 1e9:.1f}',
               weights, get_pretrained_cfg(weights).license)


def model_rows(rows: dict[str, dict[str, float]]) -> Iterator[tuple]:
    """Yield the rows of docs/model_costs.csv: each backbone under each head."""
    yield 'config', 'parameters', 'multiply-adds', 'time', 'memory', 'published'
    for key, row in rows.items():
        head, backbone = key.split('/')
        cost = (f'{row["seconds"]:.2f}', f'{row["memory"]:.0f}') if 'seconds' in row else ('', '')
        yield (f'{head}/{leaf(head, backbone).stem}', f'{row["parameters"] / 1e6:.1f}',
               f'{row["multiply_adds"] / 1e9:.0f}', *cost, PUBLISHED.get((head, backbone), ''))


def main() -> None:
    """Measure what is missing, and print both tables as CSV."""
    args = parse_args()
    rows = json.loads(args.out.read_text()) if args.out.exists() else {}
    for head in args.heads:
        for backbone in args.backbones:
            key = f'{head}/{backbone}'
            if leaf(head, backbone).exists() and key not in rows:
                rows[key] = measure(head, backbone, args.rounds)
                write_json(args.out, rows)
                print(key, rows[key], file=sys.stderr, flush=True)
    keys = (f'{head}/{backbone}' for head in args.heads for backbone in args.backbones)
    measured = {key: rows[key] for key in keys if key in rows}
    writer = csv.writer(sys.stdout, lineterminator='\n')
    writer.writerows([*iter_backbone_rows(), (), *model_rows(measured)])


if __name__ == '__main__':
    main()
