"""Compare two heads of queries behind XCiT and CaiT: PMT, and their class-attention layers.

    colonnade make-shapes data/shapes --num-train 800
    python docs/study_query_heads.py work_dirs/query_heads --data data/shapes

A backbone is first trained to name the shapes in an image, with its two class-attention layers
(CaiT, arXiv 2103.17239). It then gets one of these heads for panoptic segmentation:

- ``pmt``: three new blocks for queries and patches (arXiv 2603.25398)
- ``class_attention``: the pretrained layers, in which queries, each with a copy of the class token,
  attend to each other and to fixed patches
- ``class_attention_random``: the same layers with random weights

Runs that an earlier call has finished are not run again.
"""
from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from mmengine.registry import MODELS
from timm.layers import trunc_normal_
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.backbones import BACKBONES
from colonnade.backbones.columnar import ColumnarBackbone
from colonnade.engine.options import TrainOptions
from colonnade.engine.training import prepare_runner
from colonnade.heads.mask_annealing import AnnealedMasks
from colonnade.heads.mask_queries import MaskQueryHead, draw_open_patches
from colonnade.settings.reading import read_config

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / 'configs/pmt/xcit_nano_12_p16_slim_shapes_panoptic.py'
SIDE = 128  # pixels
SETTINGS: dict[str, dict[str, Any]] = {
    'XCiT':
    dict(type='XCiT', arch='nano_12_p16'),
    'CaiT':
    dict(
        type='CaiT',
        img_size=SIDE,
        arch=dict(embed_dim=128, depth=12, num_heads=4, layer_scale_init_value=0.1)),
}
HEADS = ('pmt', 'class_attention', 'class_attention_random')
MODES = ('full', 'frozen')


def build_backbone(name: str) -> ColumnarBackbone:
    """Build a backbone with random weights."""
    settings = dict(SETTINGS[name])
    return BACKBONES[settings.pop('type')](**settings)


@MODELS.register_module(force=True)  # the script may run again in one process
class ClassAttentionHead(AnnealedMasks, MaskQueryHead):
    """Queries in the class-attention layers of a backbone.

    Args:
        in_channels: Width C of the feature maps.
        name: Key of ``SETTINGS``.
        classifier: File of the trained classifier; without it, the layers have random weights.
        **kwargs: Arguments of :class:`.MaskQueryHead`.
    """

    def __init__(self,
                 in_channels: int,
                 *,
                 name: str,
                 classifier: str | None = None,
                 **kwargs: Any) -> None:
        super().__init__(in_channels, **kwargs)
        backbone = build_backbone(name)
        module = backbone.build_timm_module(SIDE)
        if classifier is not None:
            state = torch.load(classifier, weights_only=True)
            module.load_state_dict({k: v for k, v in state.items() if not k.startswith('head.')})
        self.layers = module.get_submodule(backbone.class_attention_name)
        self.norm, self.residual_of_norm = module.norm, name == 'XCiT'
        with torch.no_grad():
            trunc_normal_(self.q.weight, std=0.02).add_(module.cls_token[0])

    def forward(self, x: tuple, batch_data_samples: Any = None) -> tuple[list, list]:
        """Return logits of classes and masks, in training also before each layer."""
        patches, queries = x[-1], self.q.weight.expand(len(x[-1]), -1, -1)
        tokens, predictions = patches.flatten(2).mT, []
        for layer, probability in zip(
                self.layers, self.compute_probabilities(len(self.layers)), strict=True):
            open_patches = None
            if self.training:
                predictions.append(self._predict(queries, patches))
                if probability:
                    open_patches = draw_open_patches(predictions[-1][1], tuple(patches.shape[2:]),
                                                     probability)
            queries = self._attend(layer, queries, tokens, open_patches)
        predictions.append(self._predict(queries, patches))
        classes, masks = zip(*predictions, strict=True)
        return list(classes), list(masks)

    def _predict(self, queries: Tensor, patches: Tensor) -> tuple[Tensor, Tensor]:
        normalized = self.norm(patches.flatten(2).mT).mT.unflatten(2, patches.shape[2:])
        return self.predict_masks(self.norm(queries), normalized)

    def _attend(self, layer: nn.Module, queries: Tensor, tokens: Tensor,
                open_patches: Tensor | None) -> Tensor:
        """Run a class-attention layer with queries in the place of the class token."""
        attn, num_queries = layer.attn, queries.shape[1]
        x = layer.norm1(torch.cat((queries, tokens), 1))
        query, key, value = (project(part).unflatten(2, (attn.num_heads, -1)).transpose(1, 2)
                             for project, part in ((attn.q, x[:, :num_queries]), (attn.k, x),
                                                   (attn.v, x)))
        mask = None
        if open_patches is not None:
            mask = F.pad(open_patches, (num_queries, 0), value=True)[:, None]
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        mixed = attn.proj(mixed.transpose(1, 2).flatten(2))
        if self.residual_of_norm:  # XCiT
            queries = layer.norm2(queries + layer.gamma1 * mixed)
            return queries + layer.gamma2 * layer.mlp(queries)
        queries = queries + layer.gamma_1 * mixed
        return queries + layer.gamma_2 * layer.mlp(layer.norm2(queries))


def train_classifier(name: str, data: Path, path: Path, iterations: int) -> None:
    """Train timm's module to name the classes in each image, and write its weights."""
    content = json.loads((data / 'coco/annotations/instances_train2017.json').read_text())
    targets = {image['id']: torch.zeros(len(content['categories'])) for image in content['images']}
    for each in content['annotations']:
        targets[each['image_id']][each['category_id'] - 1] = 1
    files = [data / 'coco/train2017' / image['file_name'] for image in content['images']]
    pixels = np.stack([cv2.resize(cv2.imread(str(file)), (SIDE, SIDE)) for file in files])
    images = torch.from_numpy(pixels[..., ::-1].copy()).permute(0, 3, 1, 2)
    labels = torch.stack([targets[image['id']] for image in content['images']])
    torch.manual_seed(0)
    model = build_backbone(name).build_timm_module(SIDE, num_classes=labels.shape[1]).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=iterations)
    correct = 0.
    for _ in range(iterations):
        chosen = torch.randint(len(images), (16, ))
        logits = model((images[chosen] - 114.) / 57.)
        loss = F.binary_cross_entropy_with_logits(logits, labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        hits = (logits > 0) == (labels[chosen] > 0)
        correct = 0.98 * correct + 0.02 * float(hits.float().mean())
    print(f'{name}: {correct:.0%} of the labels of the last training images are right', flush=True)
    torch.save(model.state_dict(), path)


def measure_run(name: str, head: str, *, frozen: bool, seed: int, args: argparse.Namespace,
                classifier: Path) -> dict[str, float]:
    """Return PQ and seconds per iteration of a run, and train it first if it does not exist."""
    work_dir = args.out / f'{name}_{head}_{"frozen" if frozen else "full"}_seed{seed}'
    done = work_dir / 'result.json'
    if done.exists():
        return json.loads(done.read_text())
    cfg = read_config(CONFIG)
    backbone = dict(SETTINGS[name], drop_path_rate=0., frozen_stages=12 if frozen else -1)
    cfg.model.backbone = backbone | dict(
        init_cfg=dict(type='Pretrained', checkpoint=str(classifier)))
    if head != 'pmt':
        kept = ('num_queries', 'num_things_classes', 'num_stuff_classes', 'in_channels')
        cfg.model.panoptic_head = dict(
            type='ClassAttentionHead',
            name=name,
            classifier=str(classifier) if head == 'class_attention' else None,
            **{key: cfg.model.panoptic_head[key]
               for key in kept})
    work_dir.mkdir(parents=True, exist_ok=True)
    config = work_dir / 'study.py'
    cfg.dump(config)
    options = dict(
        data_root=args.data / 'coco',
        work_dir=work_dir,
        cfg_options={
            'randomness.seed': seed,
            'train_cfg.max_iters': args.iterations,
            'train_cfg.val_interval': args.iterations,
            'param_scheduler.1.end': args.iterations,
        })
    with prepare_runner(TrainOptions(config, **options)) as runner:
        started = time.perf_counter()
        runner.train()
        seconds = time.perf_counter() - started
    logs = sorted(work_dir.glob('*/vis_data/scalars.json'))
    rows = [json.loads(line) for line in logs[-1].read_text().splitlines()]
    quality = next(row for row in reversed(rows) if 'coco_panoptic/PQ' in row)['coco_panoptic/PQ']
    result = dict(PQ=quality, seconds=seconds / args.iterations)
    done.write_text(json.dumps(result))
    return result


def main() -> None:
    """Train what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('out', type=Path, help='folder of all runs')
    parser.add_argument('--data', type=Path, required=True, help='output of make-shapes')
    parser.add_argument('--backbones', nargs='+', choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument('--heads', nargs='+', choices=HEADS, default=list(HEADS))
    parser.add_argument('--modes', nargs='+', choices=MODES, default=list(MODES))
    parser.add_argument('--seeds', nargs='+', type=int, default=[0, 1])
    parser.add_argument('--iterations', type=int, default=240)
    parser.add_argument('--pretraining', type=int, default=400, help='iterations of the classifier')
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in args.backbones:
        classifier = args.out / f'{name}.pth'
        if not classifier.exists():
            train_classifier(name, args.data, classifier, args.pretraining)
        for mode in args.modes:
            for head in args.heads:
                results = [
                    measure_run(name, head, frozen=mode == 'frozen', seed=seed, args=args,
                                classifier=classifier) for seed in args.seeds
                ]  # yapf: disable
                values = ', '.join(f'{result["PQ"]:.1f}' for result in results)
                seconds = min(result['seconds'] for result in results)
                rows.append(f'| {name} | {mode} | {head} | {values} | {seconds:.2f} s |')
                print(rows[-1], flush=True)
    print('| backbone | training | head | PQ of each seed | time per iteration |')
    print('|---|---|---|---|---|', *rows, sep='\n')


if __name__ == '__main__':
    main()
