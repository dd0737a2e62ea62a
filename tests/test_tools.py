"""Commands on synthetic shapes: train, resume, test, and messages for wrong input."""
from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from conftest import LAYOUTS, METRICS, NO_WORKERS, ROOT, SHORT, config, latest_log, run_python
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import InstanceData
from torch import nn

from colonnade.backbones import ColumnarBackbone, XCiT
from colonnade.common.errors import UserError
from colonnade.engine.compilation import UncompiledEvaluation, compile_blocks
from colonnade.engine.options import TrainOptions
from colonnade.engine.training import load_training_settings, set_initial_weights, set_resume
from colonnade.evaluation.instance_tta import InstanceTTAModel
from colonnade.evaluation.tta import augment_tests
from colonnade.settings.backbone_config import set_trained_part
from colonnade.settings.dataset_paths import check_dataset, find_datasets, redirect_data_root
from colonnade.settings.reading import LaunchOptions, load_config, read_config
from colonnade.weights.downloads import fetch


def test_train_resume_test(shapes: Path, tmp_path: Path, run_tool: Callable,
                           capsys: pytest.CaptureFixture[str]) -> None:
    """This is a detector; tests/test_families.py has other heads and backbones."""
    head = 'mask_rcnn'
    data = ['--data-root', shapes / LAYOUTS[head], '--work-dir', tmp_path]
    run_tool('train', config(head), *data, *SHORT, *NO_WORKERS)
    assert (tmp_path / 'iter_2.pth').is_file()

    longer = [*SHORT[:1], 'train_cfg.max_iters=3', *SHORT[2:]]
    run_tool('train', config(head), *data, '--resume', *longer, *NO_WORKERS)
    log = latest_log(tmp_path)
    assert 'Iter(train) [3/3]' in log
    assert 'Iter(train) [2/3]' not in log
    assert (tmp_path / 'iter_3.pth').is_file()

    dumped = (tmp_path / config(head).name).read_text()
    run_tool('test', tmp_path, '--tta', '--data-root', shapes / LAYOUTS[head], '--cfg-options',
             'test_dataloader.batch_size=2', *NO_WORKERS)
    assert (tmp_path / config(head).name).read_text() == dumped, 'an evaluation changes the run'
    run_tool('test', config(head), tmp_path / 'iter_3.pth', *data, '--out', tmp_path / 'm.json',
             '--cfg-options', *NO_WORKERS)
    printed = capsys.readouterr().out
    written = json.loads((tmp_path / 'm.json').read_text())
    assert written['checkpoint'] == str(tmp_path / 'iter_3.pth')
    for metric in METRICS[head]:
        assert re.search(rf'^{metric} +[\d.e-]+$', printed, re.MULTILINE)
        assert written['metrics'][metric] >= 0


@pytest.mark.parametrize('head, package', [
    pytest.param('mask_rcnn', 'mmdet', marks=pytest.mark.slow),
    ('upernet', 'mmseg'),
])
def test_tools_of_the_libraries(head: str, package: str, shapes: Path, tmp_path: Path) -> None:
    """They have no --data-root: an environment variable sets it."""
    tools = Path(find_spec(package).origin).parent / '.mim/tools'
    work_dir = ['--work-dir', tmp_path]
    stock = [f'{split}_dataloader.persistent_workers=False' for split in ('train', 'val', 'test')]
    train = [tools / 'train.py', config(head), *work_dir, *SHORT, *NO_WORKERS, *stock]
    test = [tools / 'test.py', config(head), tmp_path / 'iter_2.pth', *work_dir]
    commands = json.dumps([list(map(str, command)) for command in (train, test)])

    run_python('tests/helpers/library_tools.py', package, commands, COLONNADE_SHAPES=str(shapes))

    assert METRICS[head][0] in latest_log(tmp_path)


@pytest.mark.parametrize('changes', [dict(_delete_=True, max_per_img=100), None])
def test_tta_requires_nms(changes: dict | None) -> None:
    cfg = read_config(config('mask_rcnn'))
    cfg.merge_from_dict({'model.test_cfg': changes})
    with pytest.raises(ValueError, match='--tta .* model.test_cfg has no nms'):
        augment_tests(cfg)


@pytest.mark.slow
def test_resume_of_another_part(shapes: Path, tmp_path: Path, run_tool: Callable) -> None:
    data = ['--data-root', shapes / 'ade', '--work-dir', tmp_path / 'run']
    run_tool('train', config('sem_fpn'), *data, '--tune', 'head', *SHORT, *NO_WORKERS)
    with pytest.raises(SystemExit, match='this one has .* resume with the --tune, frozen_stages'):
        run_tool('train', config('sem_fpn'), *data, '--resume', *SHORT, *NO_WORKERS)
    run_tool('convert_checkpoint', tmp_path / 'run', tmp_path / 'small.pth', '--base',
             tmp_path / 'run/iter_2.pth', '--trained-only')  # nothing differs
    assert (tmp_path / 'small.pth').is_file()


@pytest.mark.skipif(find_spec('peft') is not None, reason='peft is installed')
def test_lora_without_its_package() -> None:
    with pytest.raises(UserError, match=r"needs the package peft: pip install 'colonnade\[lora\]'"):
        set_trained_part(read_config(config('sem_fpn')).model, 'lora:4')


@pytest.mark.slow
def test_compiled_training(shapes: Path, tmp_path: Path, run_tool: Callable) -> None:
    """Compiled blocks train as others do, and checkpoints have the same names."""
    found = []
    for options in ([], ['--compile']):
        work_dir = tmp_path / f'run{len(found)}'
        run_tool('train', config('sem_fpn'), '--data-root', shapes / 'ade', '--work-dir', work_dir,
                 '--no-report', *options, *SHORT, 'randomness.seed=0', *NO_WORKERS)
        found.append(fetch(str(work_dir / 'iter_2.pth'))['state_dict'])
    plain, compiled = found
    assert plain.keys() == compiled.keys()
    for name, value in plain.items():
        torch.testing.assert_close(value, compiled[name], rtol=1e-3, atol=1e-3)


def test_compile_needs_blocks_and_no_fsdp(shapes: Path, tmp_path: Path,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match='--compile needs a backbone from colonnade.backbones'):
        compile_blocks(nn.Linear(2, 2))
    options = TrainOptions(config('sem_fpn'), data_root=shapes / 'ade', work_dir=tmp_path,
                           compile=True, fsdp=True)  # yapf: disable
    with pytest.raises(ValueError, match='--compile does not support --fsdp'):
        load_training_settings(options)
    with pytest.raises(ValueError, match='--cuda-graphs needs --compile'):
        load_training_settings(replace(options, compile=False, fsdp=False, cuda_graphs=True))
    monkeypatch.setattr('colonnade.engine.training.is_cuda_available', lambda: False)
    with pytest.raises(ValueError, match='--cuda-graphs needs an NVIDIA GPU, but torch finds none'):
        load_training_settings(replace(options, fsdp=False, cuda_graphs=True))


@pytest.mark.slow
def test_blocks_compiled_for_one_size() -> None:
    """Without a GPU, the mode of CUDA graphs compiles the same code and records no graph."""
    torch._dynamo.reset()
    backbone = XCiT(dict(embed_dim=32, depth=2, num_heads=4, patch_size=16), out_indices=(1, ))
    image, gradients = torch.randn(2, 3, 64, 48), []
    for change in (None, partial(compile_blocks, cuda_graphs=True)):
        if change is not None:
            change(backbone)
        backbone.zero_grad()
        backbone(image)[0].square().mean().backward()
        gradients.append([p.grad.clone() for p in backbone.parameters()])
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)


def test_uncompiled_evaluation() -> None:
    """A hook of training with CUDA graphs; the compiler here counts what it runs."""
    torch._dynamo.reset()
    runs, hook, layer = [], UncompiledEvaluation(), nn.Linear(2, 2)

    def compile_graph(graph: torch.fx.GraphModule, inputs: list) -> Callable:
        return lambda *args: runs.append(1) or graph(*args)

    layer.compile(backend=compile_graph)
    for change in (None, hook.before_val, hook.after_val, hook.before_val, hook.before_train):
        if change is not None:
            change(None)
        layer(torch.ones(1, 2))
    assert len(runs) == 3


def test_tta_sizes_of_config() -> None:
    cfg = read_config(ROOT / 'configs/linear/vit_small_patch14_dinov2_40k_ade20k_ms.py')
    augment_tests(cfg)
    sizes = [step.scale[1] for step in cfg.test_dataloader.dataset.pipeline[-1].transforms[0]]
    assert sizes == [640, 845, 1107, 1459, 1920]
    with pytest.raises(ValueError, match='must be a list of positive numbers, got 0.5'):
        augment_tests(Config(dict(img_ratios=0.5)))


def test_earlier_run_is_not_overwritten(tmp_path: Path) -> None:
    cfg = Config(dict(work_dir=str(tmp_path), resume=False))
    set_resume(cfg, None)
    (tmp_path / 'best_mIoU_iter_2.pth').touch()
    with pytest.raises(UserError, match=f'{tmp_path} has the best checkpoint from an earlier'):
        set_resume(cfg, None)
    (tmp_path / 'last_checkpoint').write_text(f'{tmp_path}/iter_2.pth')
    with pytest.raises(UserError, match=f'{tmp_path} has checkpoints from an earlier run'):
        set_resume(cfg, None)
    with pytest.raises(
            FileNotFoundError, match='last_checkpoint names .*/iter_2.pth, which does not'):
        set_resume(cfg, 'auto')
    (tmp_path / 'iter_2.pth').touch()
    set_resume(cfg, 'auto')
    assert cfg.resume


def test_load_from_applies_to_the_first_start(tmp_path: Path) -> None:
    work_dir, file = str(tmp_path / 'run'), tmp_path / 'model.pth'
    cfg = Config(dict(work_dir=work_dir, resume=False, load_from='of the config'))
    set_initial_weights(cfg, 'auto', None, new_classes=True)
    assert not cfg.resume and cfg.load_from == 'of the config'
    file.touch()
    set_initial_weights(cfg, 'auto', str(file), new_classes=True)
    assert not cfg.resume and cfg.load_from == str(file)
    with pytest.raises(ValueError, match=f'--load-from {file} has no effect with --resume'):
        set_initial_weights(cfg, str(file), str(file), new_classes=False)
    (tmp_path / 'run').mkdir()
    (tmp_path / 'run/iter_2.pth').touch()
    set_initial_weights(cfg, 'auto', str(file), new_classes=True)
    assert cfg.resume and cfg.load_from is None


def test_data_root_of_all_datasets_and_evaluators(shapes: Path) -> None:
    for head, layout in LAYOUTS.items():
        cfg = load_config(LaunchOptions(config(head), data_root=shapes / layout))
        roots = {name: dataset.data_root for name, dataset in find_datasets(cfg)}
        assert roots == {
            f'{split}_dataloader.dataset': f'{shapes / layout}'
            for split in ('train', 'val', 'test')
        }
        if layout == 'coco':
            annotations = f'{shapes}/coco/annotations/instances_val2017.json'
            assert cfg.val_evaluator.ann_file == cfg.test_evaluator.ann_file == annotations


def test_data_root_of_wrapped_datasets(tmp_path: Path) -> None:
    inner = dict(type='CocoDataset', data_root='data/coco/', ann_file='a.json')
    both = dict(type='ConcatDataset', datasets=[dict(type='RepeatDataset', dataset=inner), inner])
    cfg = Config(
        dict(
            train_dataloader=dict(dataset=both),
            val_evaluator=[dict(type='CocoMetric', ann_file='data/coco/a.json')]))
    redirect_data_root(cfg, tmp_path)
    assert [d.data_root for _, d in find_datasets(cfg)] == [str(tmp_path)] * 2
    assert cfg.val_evaluator[0].ann_file == f'{tmp_path}/a.json'
    with pytest.raises(FileNotFoundError, match=r'a\.json \(train_dataloader.*datasets\[1\]\)'):
        check_dataset(cfg, ('train_dataloader', ))


@pytest.mark.slow
def test_map_without_detections(shapes: Path, tmp_path: Path, run_tool: Callable) -> None:
    cfg = Config.fromfile(config('mask_rcnn'))
    init_default_scope(cfg.default_scope)
    torch.save(dict(state_dict=MODELS.build(cfg.model).state_dict()), tmp_path / 'random.pth')
    run_tool('test', config('mask_rcnn'), tmp_path / 'random.pth', '--data-root', shapes / 'coco',
             '--work-dir', tmp_path, '--out', tmp_path / 'm.json', '--cfg-options',
             'model.test_cfg.rcnn.score_thr=1.0', *NO_WORKERS)
    metrics = json.loads((tmp_path / 'm.json').read_text())['metrics']
    assert metrics == {
        f'coco/{kind}_{name}': 0
        for kind in ('bbox', 'segm')
        for name in ('mAP', 'mAP_50', 'mAP_75')
    }


def test_checkpoint_of_another_model(shapes: Path, tmp_path: Path, run_tool: Callable) -> None:
    cfg = Config.fromfile(config('upernet'))
    init_default_scope(cfg.default_scope)
    torch.save(dict(state_dict=MODELS.build(cfg.model).state_dict()), tmp_path / 'other.pth')
    with pytest.raises(SystemExit) as stopped:
        run_tool('test', config('sem_fpn'), tmp_path / 'other.pth', '--data-root', shapes / 'ade',
                 '--work-dir', tmp_path)
    output = str(stopped.value)
    assert f'{tmp_path}/other.pth (full model, Colonnade) does not fit' in output
    assert 'missing: neck.fpn.lateral_convs.0.conv.weight' in output
    assert 'decode_head.psp_modules.0.1.conv.weight' in output


@pytest.mark.parametrize('tool, arguments, message', [
    ('train', ['no.py'], 'train: no such config file: no.py'),
    ('train', ['{config}'], 'instances_train2017.json (train_dataloader.dataset)'),
    ('train', ['{config}', '--data-root', '/nowhere'], '--data-root /nowhere is not a directory'),
    ('train', ['{config}', '--work-dir', '{config}'], 'slim_shapes.py is not a directory'),
    ('train', [str(ROOT / 'configs/sem_fpn')], 'sem_fpn; it is a folder: pass a config in it'),
    ('train', [
        '{config}', '--data-root', '{data}', '--cfg-options',
        'model.backbone.init_cfg.checkpoint=a.pth'
    ], "init_cfg has a checkpoint but no type: init_cfg.type must be 'Pretrained'"),
    ('train', ['{config}', '--data-root', '{data}', '--resume', 'no.pth'
               ], '--resume: no such checkpoint: no.pth'),
    ('test', ['{config}', 'no.pth', '--data-root', '{data}'], 'test: no such weights file: no.pth'),
    ('test', ['{config}', '{config}'], 'instances_val2017.json (test_dataloader.dataset)'),
    ('test', [
        '{config}', '{config}', '--data-root', '{data}', '--tta', '--cfg-options',
        'test_dataloader.dataset.pipeline.1.type=RandomResize'
    ], '--tta needs one Resize'),
    ('train', ['{config}', '--data-root', '{data}', '--work-dir', '{config}/run'
               ], 'Not a directory'),
    ('train', ['{config}', '--data-root', '{data}', '--fsdp'], '--fsdp needs a launcher'),
    ('train', ['{config}', '--data-root', '{data}', '--checkpoint-format', 'sharded'
               ], '--checkpoint-format sharded needs --fsdp'),
    ('make_shapes', ['{data}'], '{data} already exists: choose another folder'),
    ('make_shapes', ['{data}/new', '--num-val', '0'], 'each split must have at least one image'),
])
def test_wrong_input_is_named(tool: str, arguments: list[str], message: str, shapes: Path,
                              run_tool: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    names = dict(config=config('mask_rcnn'), data=shapes / 'coco')
    with pytest.raises(SystemExit) as stopped:
        run_tool(tool, *(a.format(**names) for a in arguments))
    assert message.format(**names) in str(stopped.value)


@pytest.mark.parametrize('head, options', [
    pytest.param('mask_rcnn', [], marks=pytest.mark.slow), ('sem_fpn', ['--fuse'])
])  # yapf: disable
def test_tta_scales_and_flips(head: str, options: list[str], shapes: Path, tmp_path: Path,
                              run_tool: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = Config.fromfile(config(head))
    init_default_scope(cfg.default_scope)
    model = MODELS.build(cfg.model)
    torch.save(dict(state_dict=model.state_dict()), tmp_path / 'random.pth')
    seen = []
    forward = ColumnarBackbone.forward
    monkeypatch.setattr(ColumnarBackbone, 'forward',
                        lambda self, img: seen.append(img) or forward(self, img))
    run_tool('test', config(head), tmp_path / 'random.pth', '--data-root', shapes / LAYOUTS[head],
             '--work-dir', tmp_path, '--tta', *options, '--out', tmp_path / 'm.json',
             '--cfg-options', 'test_dataloader.dataset.indices=1', *NO_WORKERS)
    assert json.loads((tmp_path / 'm.json').read_text())['metrics'][METRICS[head][0]] >= 0
    sizes = [img.shape[-1] for img in seen]
    assert sizes == [size for size in (64, 96, 128, 160, 192, 224) for _ in range(2)]
    for plain, flipped in zip(seen[::2], seen[1::2], strict=True):
        assert torch.equal(plain.flip(3), flipped)


def test_tta_merges_views() -> None:
    """An object in both views counts once, with the mask of the better view."""
    init_default_scope('mmdet')
    masks = torch.zeros(3, 10, 20, dtype=torch.bool)
    masks[0, 2:6, 1:5], masks[1, 2:6, 1:6], masks[2, 6:9, 12:18] = True, True, True
    boxes = torch.tensor([[1., 2, 5, 6], [1, 2, 6, 6], [12, 6, 18, 9]])
    scores = torch.tensor([0.6, 0.9, 0.7])
    flipped = boxes[:, [2, 1, 0, 3]] * torch.tensor([-1., 1, -1, 1]) + torch.tensor([20., 0, 20, 0])

    def build_view(flip: bool, indices: list[int]) -> DetDataSample:
        sample = DetDataSample(
            metainfo=dict(ori_shape=(10, 20), flip=flip, flip_direction='horizontal'))
        sample.pred_instances = InstanceData(
            bboxes=(flipped if flip else boxes)[indices],
            masks=(masks.flip(-1) if flip else masks)[indices],
            scores=scores[indices],
            labels=torch.zeros(len(indices), dtype=torch.long))
        return sample

    class Detector(nn.Module):
        """Detector that returns its inputs."""

        def test_step(self, data: dict[str, list[DetDataSample]]) -> list[DetDataSample]:
            return data['data_samples']

    model = InstanceTTAModel(
        module=Detector(), tta_cfg=dict(nms=dict(type='nms', iou_threshold=0.5), max_per_img=9))
    views = [[build_view(False, [0])], [build_view(True, [1, 2])], [build_view(True, [])]]
    (merged, ) = model.test_step(dict(data_samples=views))
    assert torch.equal(merged.pred_instances.scores, scores[[1, 2]])
    assert torch.equal(merged.pred_instances.bboxes, boxes[[1, 2]])
    assert torch.equal(merged.pred_instances.masks, masks[[1, 2]])

    (merged, ) = model.test_step(
        dict(data_samples=[[build_view(True, [])], [build_view(False, [])]]))
    assert merged.pred_instances.masks.shape == (0, 10, 20)


def test_custom_config(shapes: Path, tmp_path: Path, run_tool: Callable) -> None:
    """Backbone and neck in a config that only inherits the dataset."""
    (tmp_path / 'own.py').write_text(f"""
_base_ = '{ROOT}/configs/_base_/sem_fpn_slim_shapes.py'
custom_imports = dict(imports=['colonnade.backbones', 'colonnade.necks'])
model = dict(
    _delete_=True,
    type='EncoderDecoder',
    data_preprocessor=dict(type='SegDataPreProcessor', size=(64, 64), pad_val=0, seg_pad_val=255),
    backbone=dict(
        type='XCiT',
        arch=dict(embed_dim=32, depth=6, num_heads=2, patch_size=8),
        out_indices=(1, -1),
        frozen_stages=1,
        with_cp=True),
    neck=dict(type='ColumnarPyramid', in_channels=32, stride=8, out_strides=(4, 16)),
    decode_head=dict(
        type='FCNHead', in_channels=[32, 32], in_index=[0, 1], input_transform='resize_concat',
        channels=16, num_convs=1, num_classes=4),
    test_cfg=dict(mode='whole'))
""")
    run_tool('train', tmp_path / 'own.py', '--data-root', shapes / 'ade', '--work-dir',
             tmp_path / 'run', *SHORT, *NO_WORKERS)
    log = latest_log(tmp_path / 'run')
    assert 'XCiT starts from random weights' in log
    assert log.count('frozen parameters are not trained, the first is backbone.') == 1
    assert 'requires_grad=False' not in log
    assert 'Iter(train) [2/2]' in log
