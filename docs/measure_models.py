"""What each trunk costs under each head: the tables of docs/choosing.md.

    python docs/measure_models.py                # all, which takes an hour on two cores
    python docs/measure_models.py dino linear    # under some heads

Parameters and multiply-adds are those of tools/complexity.py, time and memory those of its --time:
random weights, one image, on the CPU.
"""
from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from timm.models import get_pretrained_cfg

from colonnade.engine.benchmark.whole_models import cost_of
from colonnade.engine.complexity import build, count_parameters, parts_of, total_of

CONFIGS = Path(__file__).resolve().parent.parent / 'configs'
WEIGHTS = {  # trunk, as leaves name it -> weights of timm
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
HEADS = {  # folder -> name, rest of the leaves' names
    'faster_rcnn': ('Faster R-CNN', '3x_coco'),
    'mask_rcnn': ('Mask R-CNN', '3x_coco'),
    'cascade_mask_rcnn': ('Cascade Mask R-CNN', '3x_coco'),
    'vitdet': ('ViTDet', '100ep_coco_lsj'),
    'mask2former': ('Mask2Former, instances', '50ep_coco_lsj'),
    'dino': ('DINO', '12ep_coco'),
    'rtmdet_ins': ('RTMDet-Ins', '300ep_coco'),
    'sem_fpn': ('Semantic FPN', '80k_ade20k'),
    'upernet': ('UperNet', '160k_ade20k'),
    'mask2former_semantic': ('Mask2Former, semantic', '160k_ade20k'),
    'segformer': ('SegFormer', '160k_ade20k'),
    'segmenter': ('Segmenter', '160k_ade20k'),
    'linear': ('linear', '40k_ade20k'),
}
PUBLISHED = {  # by the papers of the trunks
    ('mask_rcnn', 'xcit_small_12_p16'): '45.3 / 40.8',
    ('sem_fpn', 'xcit_small_12_p16'): '43.9',
    ('upernet', 'xcit_small_12_p16'): '45.9',
    ('vitdet', 'vit_base_patch16_224_mae'): '51.6 / 45.9',
}


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('heads', nargs='*', choices=[*HEADS, []], help='folders of configs (all)')
    parser.add_argument('--rounds', type=int, default=3, help='runs of which the median is taken')
    return parser.parse_args()


def trunk_table() -> Iterator[str]:
    """Lines: each trunk by itself, at 512 x 512, and the licence of its weights."""
    yield '| trunk | parameters, M | multiply-adds, G | weights (`timm://`) | licence |'
    yield '|---|---|---|---|---|'
    for trunk, weights in WEIGHTS.items():
        head = 'sem_fpn' if (CONFIGS / f'sem_fpn/{trunk}_80k_ade20k.py').exists() else 'vitdet'
        model, _ = build(CONFIGS / head / f'{trunk}_{HEADS[head][1]}.py')
        part = next(parts_of(model, 512, 512))
        licence = get_pretrained_cfg(weights).license
        yield (f'| `{trunk}` | {part.parameters / 1e6:.1f} | {(part.multiply_adds or 0) / 1e9:.1f} '
               f'| `{weights}` | {licence} |')


def head_table(head: str, rounds: int) -> Iterator[str]:
    """Lines: all trunks under a head."""
    name, recipe = HEADS[head]
    detects = recipe.endswith(('coco', 'coco_lsj'))
    size = (800, 1216) if detects else (512, 512)
    metric = 'box / mask mAP' if detects else 'mIoU'
    yield f'\n### {name}, {size[0]} × {size[1]}\n'
    yield f'| trunk | parameters, M | multiply-adds, G | time, s | memory, MiB | {metric} |'
    yield '|---|---|---|---|---|---|'
    for trunk in WEIGHTS:
        config = CONFIGS / head / f'{trunk}_{recipe}.py'
        if not config.exists():
            continue
        model, _ = build(config)
        parameters = count_parameters(model)
        work = total_of(list(parts_of(model, *size))).multiply_adds or 0
        cost = cost_of(config, size, rounds=rounds)
        yield (f'| [{trunk}](../configs/{head}/{config.name}) | {parameters / 1e6:.1f} '
               f'| {work / 1e9:.0f} | {cost.seconds:.2f} | {cost.memory:.0f} '
               f'| {PUBLISHED.get((head, trunk), "–")} |')


def main() -> None:
    """Measure, and print the tables."""
    args = parse_args()
    for line in trunk_table():
        print(line, flush=True)
    for head in args.heads or HEADS:
        for line in head_table(head, args.rounds):
            print(line, flush=True)


if __name__ == '__main__':
    main()
