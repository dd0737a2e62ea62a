"""Every kind of leaf through the command line, on real images: train, resume, test, test --tta."""
from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LAYOUTS, METRICS, NO_WORKERS, ROOT, latest_log

LEAVES = [
    f'mask_rcnn/xcit_{name}' for name in (
        'small_12_p16_3x_coco', 'small_12_p16_3x_coco_ema', 'small_12_p16_3x_coco_lld',
        'small_12_p16_100ep_coco_lsj', 'nano_12_p16_slim_coco')
] + [
    f'{head}/xcit_{name}'.format(recipe) for head, recipe in (('sem_fpn', '80k'),
                                                              ('upernet', '160k'))
    for name in ('small_12_p16_{}_ade20k', 'small_12_p16_{}_ade20k_ema',
                 'small_12_p16_{}_ade20k_lld', 'small_12_p16_{}_ade20k_slide',
                 'nano_12_p16_slim_ade20k')
] + [
    f'{head}/{name}' for head, recipe in (('mask_rcnn', '3x_coco'), ('sem_fpn', '80k_ade20k'))
    for name in (f'cait_xxs24_{recipe}', f'resmlp_s12_{recipe}')
]  # yapf: disable
NANO = {  # what makes the leaf's backbone XCiT-N12/16
    'mask_rcnn': [],
    'sem_fpn': ['model.decode_head.in_channels=[128,128,128,128]'],
    'upernet': [
        'model.decode_head.in_channels=[128,128,128,128]', 'model.auxiliary_head.in_channels=128'
    ],
}


def steps(head: str, iterations: int, slim: bool) -> list[str]:
    """Options of a run of so many iterations of two images, saved after each or at its end."""
    common = ['train_dataloader.batch_size=2', 'default_hooks.logger.interval=1', *NO_WORKERS]
    if head == 'mask_rcnn' and not slim:
        return [*common, f'train_cfg.max_epochs={iterations}', 'train_cfg.val_interval=2',
                'default_hooks.checkpoint.interval=1', 'train_dataloader.dataset.indices=2',
                'val_dataloader.dataset.indices=1',
                'train_dataloader.dataset.filter_cfg.filter_empty_gt=False']  # yapf: disable
    return [
        *common, f'train_cfg.max_iters={iterations}', 'train_cfg.val_interval=2',
        'default_hooks.checkpoint.interval=1', 'val_dataloader.dataset.indices=1'
    ]


@pytest.mark.slow
@pytest.mark.parametrize('leaf', LEAVES)
def test_every_kind_of_leaf(leaf: str, real_data: dict[str, Path], tmp_path: Path,
                            run_tool: Callable) -> None:
    head, name = leaf.split('/')
    slim = '_slim_' in name
    config, data = ROOT / 'configs' / f'{leaf}.py', real_data[LAYOUTS[head]]
    smaller = [] if slim or 'xcit' not in name else [
        'model.backbone.arch=nano_12_p16', 'model.neck.in_channels=128', *NANO[head]
    ]
    common = ['--data-root', data, '--work-dir', tmp_path / 'run']

    run_tool('train', config, *common, '--cfg-options', *smaller, *steps(head, 2, slim))
    run_tool('train', config, *common, '--resume', '--cfg-options', *smaller, *steps(head, 3, slim))
    log = latest_log(tmp_path / 'run')
    assert 'loss: ' in log and 'loss: nan' not in log
    checkpoint = Path((tmp_path / 'run/last_checkpoint').read_text())
    assert checkpoint.stem in ('epoch_3', 'iter_3')

    for options in ([], ['--tta']):
        run_tool('test', config, checkpoint, *common, *options, '--out', tmp_path / 'm.json',
                 '--cfg-options', *smaller, 'test_dataloader.dataset.indices=1',
                 'test_dataloader.dataset.pipeline.1.scale=(333,200)', *NO_WORKERS)
        metrics = json.loads((tmp_path / 'm.json').read_text())['metrics']
        assert metrics[METRICS[head][0]] >= 0
