"""Panoptic segmentation: synthetic shapes in COCO's format, and panoptic quality."""
from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from conftest import NO_WORKERS, ROOT, SHORT
from fastapi.testclient import TestClient
from helpers.live_server import LIMITS
from helpers.random_models import random_checkpoint
from mmengine.config import Config
from mmengine.registry import DATASETS, METRICS, MODELS, DefaultScope
from pycocotools.coco import COCO

from colonnade.datasets.ade20k_panoptic import ADE20KPanopticSegments
from colonnade.datasets.segment_maps import read_segment_ids
from colonnade.engine.work_dir import Run
from colonnade.evaluation.panoptic_quality import PanopticQuality, compare_segments, summarize
from colonnade.inference import load
from colonnade.inference.ground_truth import build_panoptic_map
from colonnade.inference.loading import find_classes
from colonnade.inference.model import get_model_kind
from colonnade.inference.resume_log import ResumeLog
from colonnade.inference.serving.json_api import build_api
from colonnade.inference.serving.service import Service, compute_max_pixels
from colonnade.models.fusion.full_model import fuse
from colonnade.models.trial_step import find_trial_error
from colonnade.settings.config_values import has_masks, loads_segments
from colonnade.settings.dataset_paths import redirect_data_root
from colonnade.settings.reading import read_config
from colonnade.visualization import figures
from colonnade.visualization.run_report.record_folder import read_run
from colonnade.visualization.run_report.report_page import write_report

LEAF = 'pmt/xcit_nano_12_p16_slim_shapes_panoptic'
CONFIG = ROOT / f'configs/{LEAF}.py'
SPLITS = ('train2017', 'val2017')
META = dict(classes=('disc', 'square', 'triangle', 'background'),
            thing_classes=('disc', 'square', 'triangle'))  # yapf: disable


@pytest.mark.parametrize('split', SPLITS)
def test_segments_agree_with_instances(shapes: Path, split: str) -> None:
    folder = shapes / 'coco/annotations'
    panoptic = json.loads((folder / f'panoptic_{split}.json').read_text())
    coco = COCO(folder / f'instances_{split}.json')
    assert [(c['id'], c['name'], c['isthing'])
            for c in panoptic['categories']] == [(1, 'disc', 1), (2, 'square', 1),
                                                 (3, 'triangle', 1), (4, 'background', 0)]
    assert panoptic['images'] == list(coco.imgs.values())
    for annotation in panoptic['annotations']:
        path = folder / f'panoptic_{split}' / annotation['file_name']
        ids = read_segment_ids(cv2.imread(str(path))[..., ::-1])
        *things, stuff = annotation['segments_info']
        assert (ids > 0).all() and stuff['category_id'] == 4
        instances = coco.imgToAnns[annotation['image_id']]
        for segment, instance in zip(things, instances, strict=True):
            mask = ids == segment['id']
            assert np.array_equal(mask, coco.annToMask(instance))
            for key in ('area', 'bbox', 'category_id', 'iscrowd'):
                assert segment[key] == instance[key], key
        assert stuff['area'] == (ids == stuff['id']).sum()


def test_ids_have_three_channels() -> None:
    assert read_segment_ids(np.array([[[1, 2, 3]]], np.uint8)) == 1 + 2 * 256 + 3 * 65536


def test_quality_by_hand() -> None:
    """Two things and stuff: one matches by 3/4, one is missed, one is wrong, stuff by 9/12."""
    truth = np.array([[1, 1, 1, 1, 0, 0], [2, 2, 3, 3, 3, 3], [3, 3, 3, 3, 3, 3]])
    segments = [dict(id=1, label=0), dict(id=2, label=0), dict(id=3, label=1)]
    predicted = np.array([[5, 5, 5, 7, 5, 5], [6, 7, 7, 7, 7, 7], [7, 7, 7, 7, 7, 8]])
    stats = compare_segments(truth, segments, predicted, {5: 0, 6: 1, 7: 1, 8: 0}, 2)
    # unlabeled pixels of a prediction do not count
    assert np.allclose(stats, [[3 / 4, 1, 1, 1], [9 / 12, 1, 1, 0]])
    assert summarize(stats[:1]) == pytest.approx(dict(PQ=37.5, SQ=75., RQ=50.))
    assert summarize(stats) == pytest.approx(dict(PQ=43.75, SQ=75., RQ=175 / 3))


def test_crowds_and_unlabeled_pixels_are_no_errors() -> None:
    truth = np.array([[1, 1, 0, 0]])
    crowd = [dict(id=1, label=0, iscrowd=1)]
    for predicted, false_positives in (([[1, 1, 2, 2]], 0), ([[1, 1, 1, 1]], 0)):
        labels = dict.fromkeys(np.unique(predicted).tolist(), 0)
        stats = compare_segments(truth, crowd, np.array(predicted), labels, 1)
        assert stats.tolist() == [[0, 0, false_positives, 0]]
    assert compare_segments(truth, crowd, truth + 2, {2: 1, 3: 1}, 2)[1].tolist() == [0, 0, 1, 0]


def test_perfect_predictions(shapes: Path) -> None:
    """Ground truth, loaded as for training, has a quality of 100."""
    cfg = read_config(CONFIG)
    redirect_data_root(cfg, shapes / 'coco')
    dataset = DATASETS.build(cfg.train_dataloader.dataset | dict(
        ann_file='annotations/panoptic_val2017.json',
        data_prefix=dict(img='val2017/', seg='annotations/panoptic_val2017/'),
        pipeline=[step for step in cfg.train_pipeline if step.type != 'RandomFlip']))
    folder = shapes / 'coco/annotations'
    metric = PanopticQuality(
        str(folder / 'panoptic_val2017.json'), str(folder / 'panoptic_val2017'), classwise=True)
    metric.dataset_meta = META
    for index in range(len(dataset)):
        sample = dataset[index]['data_samples']
        segments = sample.gt_sem_seg.sem_seg.clone().long()
        for number, mask in enumerate(sample.gt_instances.masks.masks, 1):
            segments[0, torch.from_numpy(mask).bool()] += 1000 * number
        metric.process(None, [
            dict(img_id=index + 1, pred_panoptic_seg=dict(sem_seg=segments))
        ])  # yapf: disable
    metrics = metric.evaluate(len(dataset))
    assert metrics.pop('coco_panoptic/PQ_st') == 100
    assert set(metrics.values()) == {100.}
    assert 'coco_panoptic/background_PQ' in metrics


ADE20K = [path for path in sorted(ROOT.glob('configs/[!_]*/*_ade20k_panoptic.py'))]


def write_ade20k(folder: Path, names: list[str]) -> None:
    """Write an image with a wall and two windows, as Mask2Former's script does."""
    things = ADE20KPanopticSegments.METAINFO['thing_classes']
    categories = [
        dict(id=number, name=name, isthing=int(name in things)) for number, name in enumerate(names)
    ]
    number_of = {name: number for number, name in enumerate(names)}
    ids = np.ones((64, 96), np.uint8)  # the wall
    segments = [dict(id=1, category_id=number_of['wall'], bbox=[0, 0, 96, 64], area=1, iscrowd=0)]
    for id_, left in ((2, 8), (3, 56)):
        ids[16:48, left:left + 32] = id_
        segments.append(
            dict(id=id_, category_id=number_of['window '], bbox=[left, 16, 32, 32], area=1024,
                 iscrowd=0))  # yapf: disable
    for split, part in (('training', 'train'), ('validation', 'val')):
        for name in (f'images/{split}', f'ade20k_panoptic_{part}'):
            (folder / name).mkdir(parents=True)
        cv2.imwrite(str(folder / f'images/{split}/a.jpg'), np.stack([ids * 60] * 3, -1))
        red = np.stack((np.zeros_like(ids), np.zeros_like(ids), ids), -1)
        cv2.imwrite(str(folder / f'ade20k_panoptic_{part}/a.png'), red)
        annotation = dict(image_id='a', file_name='a.png', segments_info=segments)
        image = dict(id='a', file_name='a.jpg', height=64, width=96)
        content = dict(images=[image], annotations=[annotation], categories=categories)
        (folder / f'ade20k_panoptic_{part}.json').write_text(json.dumps(content))


@pytest.mark.parametrize('config', ADE20K, ids=lambda path: path.parent.name)
def test_ade20k(config: Path, tmp_path: Path) -> None:
    """Categories are in another order than classes, of which things are first."""
    classes = ADE20KPanopticSegments.METAINFO['classes']
    stuff_first = [*classes[100:], *classes[:100]]
    write_ade20k(tmp_path, stuff_first)
    cfg = read_config(config)
    redirect_data_root(cfg, tmp_path)
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    labels = dataset[0]['data_samples'].gt_instances.labels
    assert set(labels.tolist()) <= {classes.index('window ')}
    sample = DATASETS.build(cfg.val_dataloader.dataset)[0]['data_samples']
    metric = METRICS.build(cfg.val_evaluator)
    metric.dataset_meta = dataset.metainfo
    segments = torch.full((1, 64, 96), classes.index('wall'))
    for number, left in ((1, 8), (2, 56)):
        segments[:, 16:48, left:left + 32] = classes.index('window ') + 1000 * number
    metric.process(None, [dict(img_id=sample.img_id, pred_panoptic_seg=dict(sem_seg=segments))])
    metrics = metric.evaluate(1)
    assert metrics['coco_panoptic/PQ_th'] == metrics['coco_panoptic/PQ_st'] == 100


def test_other_files_of_ade20k(tmp_path: Path) -> None:
    classes = ADE20KPanopticSegments.METAINFO['classes']
    write_ade20k(tmp_path, [name for name in classes if name != 'plane'])
    cfg = read_config(ADE20K[0])
    redirect_data_root(cfg, tmp_path)
    with pytest.raises(
            ValueError, match='lack categories .plane.: create the annotations with .*_pan_seg'):
        DATASETS.build(cfg.train_dataloader.dataset)


@pytest.mark.parametrize('name, size', [('eomt/vit_small_patch16_dinov3_24ep', 640),
                                        ('pmt/xcit_small_12_p16_24ep', 640),
                                        ('mask2former/xcit_small_12_p16_50ep', 1024),
                                        ('panoptic_fpn/xcit_small_12_p16_3x', 800)])
def test_published_pipelines(name: str, size: int, shapes: Path) -> None:
    cfg = read_config(ROOT / f'configs/{name}_coco_panoptic.py')
    redirect_data_root(cfg, shapes / 'coco')
    train, val = (
        DATASETS.build(loader.dataset | dict(metainfo=META))[0]
        for loader in (cfg.train_dataloader, cfg.val_dataloader))
    truth = train['data_samples']
    height, width = train['inputs'].shape[1:]
    # Crops of DETR's augmentation are not square, and only their longer side is limited.
    assert max(height, width) <= (1333 if name.startswith('panoptic_fpn') else size)
    assert truth.gt_sem_seg.sem_seg.shape == (1, height, width)
    assert (truth.gt_instances.masks.height, truth.gt_instances.masks.width) == (height, width)
    assert max(val['inputs'].shape[1:]) == size


def test_instances_are_not_panoptic(shapes: Path) -> None:
    path = shapes / 'coco/annotations/instances_val2017.json'
    with pytest.raises(ValueError, match='has no panoptic annotations'):
        PanopticQuality(str(path), str(shapes))


@pytest.mark.slow
@pytest.mark.parametrize('head', ['panoptic_fpn', 'pmt', 'mask2former'])
def test_training(head: str, shapes: Path, tmp_path: Path, run_tool: Callable,
                  capsys: pytest.CaptureFixture[str]) -> None:
    config = ROOT / f'configs/{head}/xcit_nano_12_p16_slim_shapes_panoptic.py'
    data = ['--data-root', shapes / 'coco', '--work-dir', tmp_path / 'run']
    run_tool('train', config, *data, *(['--no-report'] if head == 'panoptic_fpn' else []), *SHORT,
             'train_cfg.val_interval=1', *NO_WORKERS)  # yapf: disable
    run_tool('test', config, tmp_path / 'run/iter_2.pth', *data, '--out', tmp_path / 'metrics.json',
             '--cfg-options', *NO_WORKERS)  # yapf: disable
    metrics = json.loads((tmp_path / 'metrics.json').read_text())['metrics']
    expected = {
        f'coco_panoptic/{q}{part}'
        for q in ('PQ', 'SQ', 'RQ')
        for part in ('', '_th', '_st')
    }
    assert metrics.keys() >= expected
    assert all(0 <= metrics[name] <= 100 for name in expected)

    assert Run(tmp_path / 'run').best  # by PQ
    moved = (tmp_path / 'run').rename(tmp_path / 'moved')
    run_tool('test', moved, '--data-root', shapes / 'coco', '--cfg-options', *NO_WORKERS)
    assert len(list(moved.glob('*/metrics.json'))) == 1 and not (tmp_path / 'run').exists()
    image = next((shapes / 'coco/val2017').iterdir())
    run_tool('predict', moved, image, '--out', tmp_path / 'predictions')
    assert (tmp_path / 'predictions/panoptic.json').exists()
    name = dict(pmt='PMTHead', mask2former='Mask2FormerHead', panoptic_fpn='PanopticFPN')[head]
    assert re.search(f'{name} on XCiT, 4 classes, predicts panoptic segments',
                     capsys.readouterr().out)
    if head != 'pmt':
        return

    run = read_run(moved)
    assert len(run.details['classes']['pq']) == 4 and run.about['kind'] == 'panoptic'
    metrics = run.details['metrics']
    pq = [value for value in run.details['classes']['pq'] if value is not None]
    assert np.mean(pq) == pytest.approx(metrics['coco_panoptic/PQ'], abs=1e-4)
    for name in ('truth_0.jpg', 'iter_2/sample_0.jpg', 'iter_2/worst_0.jpg'):
        assert (moved / 'record' / name).is_file()
    text = write_report(moved).read_text()
    assert all(f'>{name}</th>' in text for name in ('segments', 'PQ', 'SQ', 'RQ'))
    for note in (Run.BEST, Run.LAST):  # a folder with copied files
        (moved / note).unlink()
    assert Run(moved).find_model()[1] == moved / 'iter_2.pth'


@pytest.fixture(scope='module')
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_checkpoint(LEAF, tmp_path_factory.mktemp('weights') / 'a.pth')


#: make segments of random weights
ALL_QUERIES = {'model.test_cfg.object_mask_thr': 0., 'model.test_cfg.iou_thr': 0.,
               'model.test_cfg.filter_low_score': False}  # yapf: disable
OPTIONS = [f'{key}={value}' for key, value in ALL_QUERIES.items()]


def test_predictions_are_panoptic_annotations(weights: Path, shapes: Path, tmp_path: Path,
                                              run_tool: Callable) -> None:
    """They are read as a dataset, and have a quality of 100 compared with themselves."""
    out, truth = tmp_path / 'out', shapes / 'coco/annotations/panoptic_val2017.json'
    run_tool('predict', LEAF, weights, shapes / 'coco/val2017', '--ids-from', truth, '--out', out,
             '--device', 'cpu', '--cfg-options', *OPTIONS)  # yapf: disable
    content, expected = (json.loads(path.read_text()) for path in (out / 'panoptic.json', truth))
    for key in ('id', 'name', 'isthing'):
        assert [c[key] for c in content['categories']] == [c[key] for c in expected['categories']]
    assert {i['id'] for i in content['images']} == {i['id'] for i in expected['images']}
    assert len(list((out / 'visualizations').iterdir())) == len(content['images'])

    metric = PanopticQuality(str(out / 'panoptic.json'), str(out / 'panoptic'))
    metric.dataset_meta = META
    model = load(LEAF, weights, device='cpu', cfg_options=ALL_QUERIES)
    dataset = DATASETS.build(
        read_config(CONFIG).test_dataloader.dataset | dict(
            data_root='',
            ann_file=str(out / 'panoptic.json'),
            test_mode=True,
            data_prefix=dict(img=str(shapes / 'coco/val2017'), seg=str(out / 'panoptic'))))
    for index in range(len(dataset)):
        info = dataset.get_data_info(index)
        found = build_panoptic_map(model, info, info['img_path'])
        assert len(found) and found.names == model.predict(info['img_path']).names
        codes = np.array([4, *(label + 1000 * n for n, label in enumerate(found.labels, 1))])
        segments = torch.from_numpy(codes[found.segments])[None]
        metric.process(None, [
            dict(img_id=info['img_id'], pred_panoptic_seg=dict(sem_seg=segments))
        ])  # yapf: disable
    assert metric.evaluate(len(dataset))['coco_panoptic/PQ'] == 100


@pytest.mark.slow
def test_interrupted_prediction(weights: Path, shapes: Path, tmp_path: Path, run_tool: Callable,
                                monkeypatch: pytest.MonkeyPatch) -> None:
    command = ('predict', LEAF, weights, shapes / 'coco/val2017', '--device', 'cpu', '--outputs',
               'results', '--cfg-options', *OPTIONS)  # yapf: disable
    run_tool(*command, '--out', tmp_path / 'expected')
    add = ResumeLog.add
    with monkeypatch.context() as patch:
        patch.setattr(ResumeLog, 'add', lambda log, record: add(log, record) or sys.exit(130))
        with pytest.raises(SystemExit):
            run_tool(*command, '--out', tmp_path / 'out')
    assert not (tmp_path / 'out/panoptic.json').exists()
    run_tool(*command, '--out', tmp_path / 'out', '--resume')
    for path in (tmp_path / 'expected').glob('panoptic*/**'):
        if path.is_file():
            other = tmp_path / 'out' / path.relative_to(tmp_path / 'expected')
            assert path.read_bytes() == other.read_bytes()


@pytest.mark.parametrize('options, message', [
    (('--threshold', 0.5), '--threshold applies only to detectors, but the model is a panoptic'),
    (('--tile-size', 64), '--tile-size applies only to detectors and segmenters, but the model'),
    (('--outputs', 'labels'), '--outputs labels applies only to segmenters, but the model'),
])
def test_options_without_effect(options: tuple, message: str, weights: Path, shapes: Path,
                                tmp_path: Path, run_tool: Callable) -> None:
    with pytest.raises(SystemExit, match=message):
        run_tool('predict', LEAF, weights, shapes / 'coco/val2017', '--out', tmp_path / 'out',
                 *options)  # yapf: disable


def test_tools(weights: Path, shapes: Path, tmp_path: Path, run_tool: Callable) -> None:
    image = next((shapes / 'coco/val2017').iterdir())
    run_tool('package', 'make', LEAF, weights, '--out', tmp_path / 'package')
    readme = (tmp_path / 'package/README.md').read_text()
    assert '- panoptic-segmentation' in readme and 'A panoptic segmenter' in readme
    model = load(tmp_path / 'package', device='cpu')
    assert (model.kind, model.num_things) == ('panoptic', 3)
    assert model.cfg.test_dataloader.dataset.metainfo.thing_classes == META['thing_classes']
    with pytest.raises(ValueError, match='tiles of panoptic models cannot be merged'):
        model.predict(image, tile=32)
    with pytest.raises(SystemExit, match='is a package: pass .*model.safetensors'):
        run_tool('test', tmp_path / 'package')
    with pytest.raises(SystemExit, match='is a checkpoint: pass its work dir'):
        run_tool('test', weights)
    run_tool('visualize', tmp_path / 'package', image, '--out', tmp_path / 'figures')
    drawn = {path.name.split('.')[-2] for path in (tmp_path / 'figures').iterdir()}
    assert drawn == {'features', 'query-key', 'channel-attention'}
    with pytest.raises(SystemExit, match="a panoptic model does not support .* 'grad-cam'"):
        run_tool('visualize', tmp_path / 'package', image, '--out', tmp_path / 'other', '--methods',
                 'grad-cam')  # yapf: disable
    run_tool('complexity', LEAF)


def test_serving(weights: Path, shapes: Path) -> None:
    model = load(LEAF, weights, device='cpu', cfg_options=ALL_QUERIES)
    content = next((shapes / 'coco/val2017').iterdir()).read_bytes()
    with closing(Service(model, LIMITS)) as service:
        client = TestClient(build_api(service, figures))
        assert client.get('/api/model').json()['kind'] == 'panoptic'
        answer = client.post('/api/predict?masks=rle', content=content).json()
        assert answer['segments'] == model.predict(content).to_json(masks=True)['segments'] != []
        assert client.post('/api/predict?format=png', content=content).content[1:4] == b'PNG'
        assert client.post('/api/predict?threshold=0.5', content=content).status_code == 422
    assert compute_max_pixels(model) == 2 * 10**9 // (10 * model.module.panoptic_head.num_queries)
    fuse(model.module)
    assert compute_max_pixels(model) == 2 * 10**7


def test_panoptic_fpn() -> None:
    """Its heads of boxes and masks predict only things."""
    folder = Path(find_spec('mmdet').origin).parent / '.mim/configs/panoptic_fpn'
    cfg = Config.fromfile(folder / 'panoptic-fpn_r50_fpn_1x_coco.py')
    meta = dict(dataset_meta=dict(classes=[*map(str, range(80 + 53))]))
    assert len(find_classes(cfg, meta, 'a.pth')[0]) == 80 + 53
    with torch.device('meta'), DefaultScope.overwrite_default_scope('mmdet'):
        assert get_model_kind(MODELS.build(cfg.model)) == 'panoptic'
    cfg.model.roi_head.bbox_head.num_classes = 133
    with pytest.raises(
            ValueError, match='80 classes of things, but model.roi_head.bbox_head has 133'):
        find_classes(cfg, meta, 'a.pth')


def test_nothing_is_predicted() -> None:
    cfg = read_config(CONFIG)
    cfg.model.test_cfg.panoptic_on = False
    with pytest.raises(ValueError, match='predicts nothing: set panoptic_on=True or instance_on'):
        get_model_kind(MODELS.build(cfg.model))


@pytest.mark.parametrize('name', [
    'pmt/xcit_nano_12_p16', 'eomt/plain_vit_nano_12', 'mask2former/xcit_nano_12_p16',
    'panoptic_fpn/xcit_nano_12_p16'
])
def test_trial_step(name: str) -> None:
    cfg = read_config(ROOT / f'configs/{name}_slim_shapes_panoptic.py')
    assert has_masks(cfg) and loads_segments(cfg)
    assert find_trial_error(cfg) is None


def test_folder_without_checkpoints(tmp_path: Path, run_tool: Callable) -> None:
    read_config(CONFIG).dump(tmp_path / 'config.py')
    with pytest.raises(SystemExit, match='nor the work dir of a run: it has no checkpoint'):
        run_tool('predict', tmp_path, ROOT / 'docs/images/predict_labels.jpg', '--out',
                 tmp_path / 'out')
