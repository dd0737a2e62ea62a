"""Fine-tuning on other classes: only layers that depend on them are reset."""
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import LAYOUTS, NO_VAL, NO_WORKERS, config, latest_log
from mmengine.config import Config
from mmengine.registry import MODELS
from torch import Tensor

from colonnade.models.class_transfer import ClassTransfer, find_class_rows
from colonnade.settings.classes import iter_class_heads
from colonnade.settings.reading import read_config
from colonnade.weights.loading import plan_loading
from colonnade.weights.state_dicts import get_classes

OLD = {'coco': ('triangle', 'star', 'disc', 'ring'), 'ade': ('ring', 'square', 'background')}
NEW = {
    'coco': ('disc', 'square', 'triangle'),
    'ade': ('background', 'disc', 'square', 'triangle'),
}
# tensor -> rows per class, rows after those of the classes
DETECTOR = {
    'roi_head.bbox_head.fc_cls': (1, 1),
    'roi_head.bbox_head.fc_reg': (4, 0),
    'roi_head.mask_head.conv_logits': (1, 0),
}
DEPENDENT = {
    'mask_rcnn': DETECTOR,
    'sem_fpn': {'decode_head.conv_seg': (1, 0)},
    'upernet': {'decode_head.conv_seg': (1, 0), 'auxiliary_head.conv_seg': (1, 0)},
}  # yapf: disable


def build_model(head: str, num_classes: int, **changes: Any) -> torch.nn.Module:
    cfg = read_config(config(head))
    cfg.merge_from_dict(changes)
    for _, part in iter_class_heads(cfg.model):
        part['num_classes'] = num_classes
    return MODELS.build(cfg.model)


def save(path: Path, head: str, **meta: Any) -> dict[str, Tensor]:
    """Write a checkpoint of a model of the old classes, and return its tensors."""
    state = build_model(head, len(OLD[LAYOUTS[head]])).state_dict()
    torch.save(dict(state_dict=state, meta=meta), path)
    return state


def fine_tune(run_tool: Callable, head: str, data: Path, work_dir: Path, *options: Any) -> None:
    """Train one step with a learning rate of 0."""
    run_tool('train', config(head), '--data-root', data / LAYOUTS[head], '--work-dir', work_dir,
             *options, '--cfg-options', 'train_cfg.max_iters=1', 'optim_wrapper.optimizer.lr=0',
             'train_dataloader.batch_size=2', 'model.backbone.norm_eval=True', *NO_VAL,
             *NO_WORKERS[:1])


@pytest.mark.slow
@pytest.mark.parametrize('head', ['sem_fpn', 'mask_rcnn', 'upernet'])
def test_common_classes_keep_rows(head: str, shapes: Path, tmp_path: Path,
                                  run_tool: Callable) -> None:
    old, new = OLD[LAYOUTS[head]], NEW[LAYOUTS[head]]
    before = save(tmp_path / 'old.pth', head, dataset_meta=dict(classes=old))

    fine_tune(run_tool, head, shapes, tmp_path / 'run', '--load-from', tmp_path / 'old.pth',
              '--new-classes')

    after = torch.load(tmp_path / 'run/iter_1.pth', weights_only=False)['state_dict']
    dependent = {
        f'{layer}.{kind}': rows
        for layer, rows in DEPENDENT[head].items()
        for kind in ('weight', 'bias')
    }
    for key, value in after.items():
        if 'running_' in key or 'num_batches' in key:
            continue
        if key not in dependent:
            assert torch.equal(value, before[key]), key
            continue
        per_class, others = dependent[key]
        assert len(value) == len(new) * per_class + others
        for name in set(old) & set(new):
            was, now = (slice(names.index(name) * per_class, (names.index(name) + 1) * per_class)
                        for names in (old, new))  # yapf: disable
            assert torch.equal(value[now], before[key][was]), (key, name)
        assert torch.equal(value[len(new) * per_class:], before[key][len(old) * per_class:])
    log = latest_log(tmp_path / 'run')
    assert f'{len(dependent)} tensors depend on the classes' in log
    for layer in DEPENDENT[head]:
        assert f'{layer}.weight' in log
    common = [name for name in new if name in old]
    assert f'{len(common)} of {len(new)} classes keep their weights: {", ".join(common)}. ' in log
    others = [name for name in new if name not in old]
    assert ('Untrained: ' in log) == bool(others)


def test_file_without_class_names() -> None:
    before = build_model('sem_fpn', len(OLD['ade'])).state_dict()
    cfg = read_config(config('sem_fpn'))
    model, adapt = MODELS.build(cfg.model), ClassTransfer(cfg)
    checkpoint = dict(state_dict=before)
    adapt_to = partial(adapt, model.state_dict(), checkpoint)
    plan = plan_loading(model, checkpoint, 'a.pth', adapt=adapt_to)
    assert 'The file has no class names: all classes start untrained.' in str(adapt)
    assert plan.state['decode_head.conv_seg.weight'].shape[0] == 4
    assert torch.equal(plan.state['neck.stride4.0.weight'], before['neck.stride4.0.weight'])


@pytest.mark.parametrize('meta, names', [
    (dict(dataset_meta=dict(classes=('a', 'b'))), ('a', 'b')),
    (dict(CLASSES=['a', 'b']), ('a', 'b')),
    (dict(dataset_meta=None), ()),
    (dict(dataset_meta=dict(classes='a')), ()),
    (None, ()),
])
def test_get_classes(meta: Any, names: tuple[str, ...]) -> None:
    assert get_classes(dict(meta=meta)) == names


def said_by(run_tool: Callable, capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    with pytest.raises(SystemExit) as stopped:
        fine_tune(run_tool, *arguments)
    return f'{stopped.value}{capsys.readouterr().err}'


def test_error_suggests_new_classes(shapes: Path, tmp_path: Path, run_tool: Callable,
                                    capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / 'old.pth', 'mask_rcnn')
    said = said_by(run_tool, capsys, 'mask_rcnn', shapes, tmp_path / 'run', '--load-from',
                   tmp_path / 'old.pth')
    assert '6 of another shape: roi_head.bbox_head.fc_cls.weight' in said
    assert '--load-from FILE --new-classes' in said


def test_new_classes_keeps_other_errors(shapes: Path, tmp_path: Path, run_tool: Callable,
                                        capsys: pytest.CaptureFixture[str]) -> None:
    changes = {'model.neck.fpn.out_channels': 32, 'model.decode_head.in_channels': [32] * 4}
    torch.save(
        dict(state_dict=build_model('sem_fpn', 9, **changes).state_dict()), tmp_path / 'a.pth')
    said = said_by(run_tool, capsys, 'sem_fpn', shapes, tmp_path / 'run', '--load-from',
                   tmp_path / 'a.pth', '--new-classes')
    assert 'it differs from the model in neck, decode_head' in said
    assert 'conv_seg' not in said and '--new-classes leaves' not in said


def test_new_classes_needs_load_from(shapes: Path, tmp_path: Path, run_tool: Callable,
                                     capsys: pytest.CaptureFixture[str]) -> None:
    said = said_by(run_tool, capsys, 'sem_fpn', shapes, tmp_path / 'run', '--new-classes')
    assert '--new-classes needs --load-from FILE' in said


@pytest.mark.parametrize('old', [dict(num_classes=2, out_channels=1), dict(num_classes=4)])
def test_resets_shared_row_of_two_classes(old: dict) -> None:

    def built(classes: tuple[str, ...], **head: Any) -> tuple[Config, torch.nn.Module]:
        cfg = read_config(config('sem_fpn'))
        cfg.model.decode_head.update(head)
        cfg.train_dataloader.dataset.metainfo = dict(classes=classes)
        return cfg, MODELS.build(cfg.model)

    cfg, model = built(('ground', 'road'), num_classes=2, out_channels=1)
    _, other = built(('ground', 'roof', 'a', 'b')[:old['num_classes']], **old)
    checkpoint = dict(
        state_dict=other.state_dict(), meta=dict(CLASSES=('ground', 'roof')[:old['num_classes']]))
    adapt = partial(ClassTransfer(cfg), model.state_dict(), checkpoint)
    plan = plan_loading(model, checkpoint, 'a.pth', adapt=adapt)
    key = 'decode_head.conv_seg.weight'
    assert torch.equal(plan.state[key], model.state_dict()[key])
    assert torch.equal(plan.state['neck.stride8.weight'], other.state_dict()['neck.stride8.weight'])


def test_resets_anchor_rows() -> None:
    cfg = read_config(config('mask_rcnn'))
    head = dict(type='RetinaHead', num_classes=3, in_channels=64, feat_channels=16, stacked_convs=1)
    cfg.model = Config(
        dict(
            model=dict(
                type='RetinaNet',
                backbone=cfg.model.backbone,
                neck=cfg.model.neck,
                bbox_head=head,
                test_cfg=dict()))).model
    cfg.train_dataloader.dataset.metainfo = dict(classes=('a', 'b', 'c'))
    rows = find_class_rows(cfg, 3)
    assert set(rows) == {'bbox_head.retina_cls.weight', 'bbox_head.retina_cls.bias'}
    adapter = ClassTransfer(cfg)
    own = {key: torch.zeros(27, *[1] * key.endswith('weight')) for key in rows}
    state = {key: torch.ones_like(value) for key, value in own.items()}
    adapted = adapter(own, dict(meta=dict(CLASSES=('a', 'b', 'c'))), state)
    assert all(not value.any() for value in adapted.values())
