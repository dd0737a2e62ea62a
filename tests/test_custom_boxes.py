"""Custom datasets with boxes only train and are evaluated with the recipes for masks."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.synthetic_data import change, draw_instances, leaf, remove, train_and_test
from mmengine.config import Config


@pytest.fixture
def instances(tmp_path: Path) -> list[str | Path]:
    return draw_instances(tmp_path)


@pytest.mark.slow
def test_train_and_evaluate_boxes(instances: list, tmp_path: Path, run_tool: Callable,
                                  capsys: pytest.CaptureFixture[str]) -> None:
    for file in instances[1:3]:
        remove(file, 'segmentation')
    out = tmp_path / 'own.py'
    run_tool('create_config', leaf('mask_rcnn'), *instances, '--out', out)
    assert 'warning: no annotation has a segmentation: the config trains on boxes' in \
        capsys.readouterr().out
    cfg = Config.fromfile(out)
    assert cfg.model.roi_head.mask_head is None
    assert cfg.model.roi_head.bbox_head.num_classes == 2
    assert cfg.val_evaluator.metric == 'bbox'
    metrics = train_and_test(run_tool, out)
    assert 0 <= metrics['coco/bbox_mAP'] <= 1
    assert not any('segm' in name for name in metrics)


@pytest.mark.parametrize('recipe', ['small_12_p16_3x_{}', 'small_12_p16_100ep_{}_lsj'])
def test_boxes_only_with_partial_masks(recipe: str, instances: list, tmp_path: Path,
                                       run_tool: Callable,
                                       capsys: pytest.CaptureFixture[str]) -> None:
    change(instances[1], 'annotations', 0, segmentation=None)
    out = tmp_path / 'own.py'
    run_tool('create_config', leaf('mask_rcnn', recipe), *instances, '--boxes-only', '--out', out)
    assert 'repaired' not in capsys.readouterr().out
    cfg = Config.fromfile(out)
    assert cfg.model.type == 'FasterRCNN'
    for split in ('train', 'val'):
        steps = cfg[f'{split}_dataloader'].dataset.pipeline
        assert [step.get('with_mask') for step in steps].count(False) == 1
        assert not any(step.get('with_mask') or step.get('by_mask') for step in steps)
