"""EoMT: the reference outputs, masked attention, training and evaluation."""
from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from conftest import SHARED
from mmdet.models.dense_heads import mask2former_head
from mmengine.structures import InstanceData

from colonnade.backbones import PlainViT
from colonnade.heads.eomt_head import EoMTHead

REFERENCE = SHARED / 'reference'
NAMES = sorted(path.stem for path in REFERENCE.glob('eomt_*.json'))
needs_reference = pytest.mark.skipif(not NAMES, reason=f'no reference outputs in {REFERENCE}')


class Case:
    """Reference outputs of the authors' code, and the file of weights that they belong to."""

    def __init__(self, name: str) -> None:
        sys.path.insert(0, str(REFERENCE))
        import fill
        sys.path.pop(0)
        self.fill = fill
        self.json = json.loads((REFERENCE / f'{name}.json').read_text())
        self.arrays = np.load(REFERENCE / f'{name}.npz')

    def state(self, keys: str = 'keys') -> dict[str, torch.Tensor]:
        return {
            key: torch.from_numpy(np.array(value))
            for key, value in self.fill.state_dict_from(self.json[keys]).items()
        }

    def build(self) -> tuple[PlainViT, EoMTHead]:
        """Build the network with the weights of the DINOv2 file."""
        made = self.json['constructor']
        trunk = made['trunk']
        backbone = PlainViT(
            dict(model=trunk['name'], **trunk['overrides']),
            patch_size=made['patch_size'],
            norm_features=True,
            num_query_blocks=made['num_blocks'])
        head = EoMTHead(
            trunk['overrides']['embed_dim'],
            num_queries=made['num_q'],
            num_things_classes=made['num_classes'],
            num_stuff_classes=0,
            train_cfg=dict(num_points=self.json.get('num_points', 1)))
        state = self.state()
        own = {
            key.removeprefix('network.encoder.backbone.'): value
            for key, value in state.items() if key.startswith('network.encoder.backbone.')
        }
        height, width = made['img_size']
        own['pos_embed'] = own['pos_embed'].unflatten(1, (height // 16, width // 16))
        grid = backbone.patch_embed.grid_size
        # The positions of the rectangle are kept for exactly this grid.
        backbone.patch_embed.grid_size = tuple(own['pos_embed'].shape[1:3])
        own['pos_embed'] = own['pos_embed'].flatten(1, 2)
        assert grid[0] == grid[1]
        backbone.pos_embed = torch.nn.Parameter(own['pos_embed'])
        backbone.load_state_dict(own)
        head.load_state_dict({
            key.removeprefix('network.'): value
            for key, value in state.items()
            if key.startswith('network.') and not key.startswith(('network.encoder',
                                                                  'network.attn_mask_probs'))
        })
        return backbone.eval(), head.eval()

    def image(self) -> torch.Tensor:
        scale, shift = (np.float32(value) for value in self.json['input_scale'])
        pixels = torch.from_numpy(scale * self.fill.image(*self.json['input']) + shift)
        mean, std = (
            torch.tensor(value)[:, None, None]
            for value in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
        return (pixels - mean) / std

    def compare(self, name: str, value: torch.Tensor) -> None:
        info = self.json['outputs'][name]
        assert list(value.shape) == info['shape']
        is_double = value.dtype == torch.float64
        stride = info['stride_f64'] if is_double else info['stride']
        expected = self.arrays[f'{name}.f64' if is_double else name]
        found = self.fill.subset(value.detach().numpy(), stride)
        assert np.abs(found - expected).max() <= (1e-6 if is_double else 1e-5) * info['absmax']


@needs_reference
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize('name', [name for name in NAMES if 'dinov2' in name])
def test_outputs_equal_the_original(name: str, dtype: torch.dtype) -> None:
    case = Case(name)
    backbone, head = case.build()
    backbone.to(dtype)
    head.to(dtype)
    tokens = backbone(case.image().to(dtype))
    (classes, ), (masks, ) = head(tokens)
    case.compare('class_logits', classes)
    case.compare('mask_logits', masks)
    if not case.json.get('masked'):
        return
    predictions = head.train()(tokens)
    for index, (classes, masks) in enumerate(zip(*predictions, strict=True)):
        case.compare(f'masked.class_logits_{index}', classes)
        case.compare(f'masked.mask_logits_{index}', masks)


@needs_reference
def test_losses_equal_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case('eomt_dinov2_small_96x128_b2')
    backbone, head = case.build()
    classes, masks = head.train()(backbone(case.image()))
    height, width = masks[0].shape[-2:]
    rows, columns = torch.meshgrid(
        (torch.arange(height) + 0.5) / height, (torch.arange(width) + 0.5) / width, indexing='ij')
    points = torch.stack((columns, rows), dim=-1).view(1, -1, 2)
    monkeypatch.setattr(mask2former_head, 'get_uncertain_point_coords_with_randomness',
                        lambda logits, *_: points.repeat(len(logits), 1, 1))
    monkeypatch.setattr(mask2former_head.torch, 'rand', lambda *_, **__: points)
    objects = []
    for targets in case.json['targets']:
        drawn = torch.zeros(len(targets), *case.json['input'][1:])
        for mask, target in zip(drawn, targets, strict=True):
            left, top, right, bottom = target['box']
            mask[top:bottom, left:right] = 1
        labels = torch.tensor([target['label'] for target in targets])
        objects.append(InstanceData(labels=labels, masks=drawn))
    losses = head.loss_by_feat(classes, masks, objects, [{}, {}])
    total = torch.stack([loss.sum() for loss in losses.values()]).sum()
    expected = case.arrays['loss_total']
    assert total.item() == pytest.approx(float(expected[0]), rel=1e-5)
    weights = dict(loss_mask=5, loss_dice=5, loss_cls=2)
    for index, row in enumerate(case.arrays['losses']):
        prefix = '' if index == len(masks) - 1 else f'd{index}.'
        for (name, weight), value in zip(weights.items(), row, strict=True):
            assert losses[prefix + name].item() == pytest.approx(weight * value, rel=1e-5)


@pytest.mark.parametrize('max_iters, phase', [(39122, 6520), (88692, 14782)])
def test_annealing_has_the_published_steps(max_iters: int, phase: int) -> None:
    head = EoMTHead(8, num_things_classes=2, num_stuff_classes=0)
    for block in range(4):
        start, end = phase * (block + 1), phase * (block + 2)
        found = []
        for step in (0, start, (start + end) // 2, end - 1, end, max_iters - 1):
            head.progress = step, max_iters
            found.append(head.compute_probabilities(4)[block])
        assert found[:2] == [1., 1.] and found[4:] == [0., 0.]
        assert found[2] == pytest.approx(0.5**0.9)
        assert 0 < found[3] < 0.01
