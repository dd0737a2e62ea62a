"""Record of a training run, and its report."""
from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import NO_VAL, NO_WORKERS, ROOT, SHORT, config, latest_log, run_two
from mmengine.config import Config
from mmengine.registry import DATASETS, METRICS, DefaultScope
from mmengine.structures import InstanceData, PixelData

from colonnade.common.console_logging import import_without_warnings
from colonnade.common.errors import UserError
from colonnade.common.locking import lock_folder
from colonnade.engine.distributed.fingerprints import (compute_data_checksums,
                                                       compute_listing_checksum)
from colonnade.engine.work_dir import Run
from colonnade.evaluation.plots import render_figure
from colonnade.visualization.html_pages import build_sections, plots
from colonnade.visualization.run_report import predictions
from colonnade.visualization.run_report.class_metrics import (CocoTruth, compute_details,
                                                              compute_precision, find_truth,
                                                              get_coco_library)
from colonnade.visualization.run_report.class_sections import build_class_sections
from colonnade.visualization.run_report.predictions import Detections, PixelCounts, match_objects
from colonnade.visualization.run_report.record_folder import RecordedRun, read_columns, read_run
from colonnade.visualization.run_report.recorder import (RunRecord, describe_command,
                                                         find_changed_data)
from colonnade.visualization.run_report.report_page import (SECTIONS, build_command_sections,
                                                            build_skip_sections, format_duration,
                                                            plot_sizes, write_report)
from colonnade.visualization.run_report.sample_images import thin_evaluations

ANY_SCORE = ['model.test_cfg.rcnn.score_thr=0.0', 'model.test_cfg.rcnn.max_per_img=10']


@pytest.fixture
def writes_pages() -> bool:
    """Runs write their reports in these tests."""
    return True


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content))


def build_report(run: RecordedRun) -> dict[str, Any]:
    return {section.title: section for section in build_sections(SECTIONS, run)}


def build_coco_val(folder: Path) -> Any:
    """Build mmdet's dataset of COCO's validation images."""
    import_without_warnings('mmdet.datasets')
    with DefaultScope.overwrite_default_scope('mmdet'):
        return DATASETS.build(
            dict(
                type='CocoDataset',
                data_root=str(folder),
                ann_file='annotations/instances_val2017.json',
                data_prefix=dict(img='val2017/'),
                test_mode=True,
                pipeline=[]))


def predict_noisily(dataset: Any) -> list[Any]:
    """Return predictions for each image: objects with noise, some of another class, some twice."""
    from mmdet.structures import DetDataSample
    random, predicted = np.random.default_rng(0), []
    for index in range(len(dataset)):
        info = dataset.get_data_info(index)
        objects = [item for item in info['instances'] if random.random() < 0.8]
        objects += objects[:2]
        boxes = np.array([item['bbox'] for item in objects], dtype=np.float32).reshape(-1, 4)
        sides = np.tile(boxes[:, 2:] - boxes[:, :2], 2)
        boxes += (random.normal(scale=0.08, size=boxes.shape) * sides).astype(np.float32)
        labels = [item['bbox_label'] for item in objects]
        labels = [(label + 1) % 80 if random.random() < 0.2 else label for label in labels]
        masks = np.zeros((len(boxes), info['height'], info['width']), dtype=bool)
        for mask, (left, top, right, bottom) in zip(masks, boxes.round().astype(int), strict=True):
            mask[max(top, 0):bottom, max(left, 0):right] = True
        sample = DetDataSample(
            metainfo=dict(img_id=info['img_id'], ori_shape=(info['height'], info['width'])))
        sample.pred_instances = InstanceData(
            bboxes=torch.from_numpy(boxes),
            labels=torch.tensor(labels, dtype=torch.long),
            scores=torch.from_numpy(random.random(len(boxes)).astype(np.float32)),
            masks=torch.from_numpy(masks))
        predicted.append(sample)
    return predicted


@pytest.mark.parametrize('kind', ['FasterCocoMetric', 'CocoMetric'])
def test_average_precision_matches_metric(kind: str, real_data: dict[str, Path]) -> None:
    dataset = build_coco_val(real_data['coco'])
    predicted = predict_noisily(dataset)[:20]
    metric = METRICS.get(f'mmdet.{kind}')(
        ann_file=str(real_data['coco'] / 'annotations/instances_val2017.json'),
        metric=['bbox', 'segm'])
    metric.dataset_meta = dataset.metainfo
    metric.process({}, [sample.to_dict() for sample in predicted])
    expected = metric.evaluate(len(dataset))
    found = [Detections.from_sample(sample, index, None) for index, sample in enumerate(predicted)]
    truth = find_truth([metric], dataset)
    for part in ('bbox', 'segm'):
        measured = compute_precision(truth, found, part)
        assert 0.02 < np.nanmean(measured) < 0.9
        assert round(np.nanmean(measured), 3) == expected[f'coco/{part}_mAP']
        assert round(np.nanmean(measured[0]), 3) == expected[f'coco/{part}_mAP_50']
    dataset._metainfo['classes'] += ('sky', )  # Panoptic data have classes without boxes.
    details = compute_details(found, dataset, [metric])
    assert details['classes']['bbox_ap'][80] is None
    assert np.isclose(
        np.mean([ap for ap in details['classes']['bbox_ap'] if ap is not None]),
        expected['coco/bbox_mAP'],
        atol=6e-4)
    assert len(details['curves']['segm']) == 7 and len(details['worst']) == 8


def test_average_precision_without_metric(real_data: dict[str, Path]) -> None:
    """Annotations come from the dataset, in which images are identified by their indices."""
    dataset = build_coco_val(real_data['coco'])
    found = [
        Detections.from_sample(sample, index, None)
        for index, sample in enumerate(predict_noisily(dataset))
    ]
    truth = find_truth([], dataset)
    assert truth is not None and truth.by_index
    assert 0.02 < np.nanmean(compute_precision(truth, found, 'segm')) < 0.9
    nothing = [Detections(0, 0, (9, 9), np.zeros((0, 4)), np.zeros(0), np.zeros(0, dtype=int))]
    assert np.nanmax(compute_precision(truth, nothing, 'bbox')) == 0
    for name in ('LVISMetric', 'FasterLVISMetric'):
        assert find_truth([type(name, (), {})()], dataset) is None
    details = compute_details(found, dataset, [type('LVISMetric', (), {})()])
    assert 'bbox_ap' not in details['classes'] and details['confusion']


def test_average_precision_of_classes_without_objects() -> None:
    api = get_coco_library()[0]()
    api.dataset = dict(
        images=[dict(id=0, height=100, width=100)],
        categories=[dict(id=7, name='b'), dict(id=3, name='d')],
        annotations=[dict(id=1, image_id=0, category_id=3, bbox=[0, 0, 10, 10], area=100,
                          iscrowd=0)])  # yapf: disable
    api.createIndex()
    truth = CocoTruth(api, [0], {7: 1, 3: 3}, 4)
    for found, expected in ((detect((0, 0, 10, 10, 1, 90)), 1), (detect(), 0)):
        measured = compute_precision(truth, [found], 'bbox')
        assert measured.shape == (10, 101, 4)
        np.testing.assert_array_equal(
            measured.mean(axis=(0, 1)), [np.nan, np.nan, np.nan, expected])


def detect(*boxes: tuple[int, ...]) -> Detections:
    """Return detections ``(left, top, right, bottom, label, percent)``."""
    rows = np.array(boxes, dtype=np.float32).reshape(-1, 6)
    return Detections(0, 0, (100, 100), rows[:, :4], rows[:, 5] / 100, rows[:, 4].astype(int))


def test_match_detections_with_objects() -> None:
    objects = [
        dict(bbox=[0, 0, 10, 10], bbox_label=0),
        dict(bbox=[20, 20, 30, 30], bbox_label=1),
        dict(bbox=[50, 50, 60, 60], bbox_label=2),
        dict(bbox=[70, 70, 100, 100], bbox_label=1, ignore_flag=1),
    ]
    found = detect(
        (0, 0, 10, 10, 0, 90),  # right
        (0, 0, 10, 9, 0, 80),  # again
        (20, 20, 30, 30, 2, 70),  # another class
        (72, 72, 80, 80, 1, 60),  # in a crowd
        (50, 50, 60, 60, 2, 29))  # not sure
    matches = match_objects(found, objects, 3)
    assert sorted(matches.pairs) == [(0, 0), (1, 2), (2, 3), (3, 0)]
    assert (matches.right, matches.missed, matches.wrong) == (1, 2, 2)
    assert matches.f1 == pytest.approx(2 / 6)
    assert predictions.count_pairs([matches]) == [[0, 0, 1], [1, 2, 1], [2, 3, 1], [3, 0, 1]]
    assert predictions.find_worst_matches([matches], 8) == [matches]
    better = match_objects(detect((0, 0, 10, 10, 0, 90)), objects[:1], 3)
    assert predictions.find_best_matches([matches, better], 8) == [better, matches]
    empty = match_objects(detect(), [], 3)
    assert empty.f1 is None and predictions.find_worst_matches([empty], 8) == []
    assert predictions.find_best_matches([empty], 8) == []
    assert match_objects(detect((0, 0, 9, 9, 0, 50)), [], 3).pairs == ((3, 0), )


def test_ap_by_size() -> None:
    metrics = {'coco/bbox_mAP_s': 0.1, 'coco/bbox_mAP_m': 0.2, 'coco/bbox_mAP_l': -1.}
    (caption, figure), = plot_sizes(dict(metrics=metrics))
    assert caption.startswith('AP by size')
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names == ['small', 'medium']  # no large objects
    assert plot_sizes(dict(metrics={'coco/bbox_mAP_s': 0.1, 'mIoU': 0.2})) == []


def test_iou_matches_metric() -> None:
    import_without_warnings('mmseg.datasets')
    metric = METRICS.get('mmseg.IoUMetric')()
    metric.dataset_meta = dict(classes=('a', 'b', 'c', 'never'))
    random, found = torch.Generator().manual_seed(0), []
    for index in range(3):
        truth = torch.randint(0, 3, (40, 30), generator=random)
        answer = torch.where(torch.rand(40, 30, generator=random) < 0.7, truth, 1)
        truth[:3], truth[3] = 255, 7  # Label 7 has no class.
        data = [PixelData(data=each[None]).to_dict() for each in (answer, truth)]
        metric.process({}, [dict(pred_sem_seg=data[0], gt_sem_seg=data[1])])
        found.append(PixelCounts.from_labels(answer, truth, index, 4, 255))
    expected = metric.evaluate(3)
    scores = predictions.compute_scores(predictions.count_confusion(found))
    assert round(100 * np.nanmean(scores['iou']), 2) == pytest.approx(expected['mIoU'], abs=0.011)
    assert round(100 * np.nanmean(scores['acc']), 2) == pytest.approx(expected['mAcc'], abs=0.011)
    assert np.isnan(scores['iou'][3])
    assert found[0].labels.shape == (40, 30)
    big = PixelCounts.from_labels(torch.ones(1000, 500), torch.ones(1000, 500), 0, 4, 255)
    assert big.labels.shape == (334, 167) and big.miou == 1
    assert predictions.find_worst_maps([big], 8) == []
    assert predictions.find_best_maps([*found, big], 1) == [(big, 1.)]


def test_record_segmenter(trained: Path) -> None:
    evaluation = read_run(trained).read_details(read(trained / 'record/iter_2/evaluation.json'))
    iou = [value for value in evaluation['classes']['iou'] if value is not None]
    assert 100 * np.mean(iou) == pytest.approx(evaluation['metrics']['mIoU'], abs=0.006)
    assert evaluation['images'] == evaluation['recorded'] == len(evaluation['samples']) == 4
    about = read(trained / 'record/run.json')
    assert about['state'] == 'finished' and about['kind'] == 'labels' and about['batch'] == 2
    assert about['data']['training']['images'] == 12 and about['config']['work_dir']
    assert about['seconds'] >= about['seconds_of_recording'] > 0 and about['peak_memory'] > 0.1
    text = (trained / 'report.html').read_text()
    assert 'This part cannot be built' not in text
    assert len(text) < 3e6 and 'http-equiv' not in text and 'src="http' not in text
    assert text.count('<img') >= 4 + 1 + len(evaluation['worst'])
    assert 'epoch' not in evaluation and 'epoch' not in about
    assert 'the first 16 of 64 digits of SHA-256' in text and 'at least 0.3 are drawn' not in text
    report = build_report(read_run(trained))
    tiles = report['Worst images'].tiles[0][1]
    assert [title for title, _ in tiles] == ['ground truth', 'prediction']
    assert list(report)[0] == 'Run' and {'Samples', 'Classes', 'Confusion'} < report.keys()


@pytest.mark.slow
def test_record_detector(run_tool: Callable, shapes: Path, tmp_path: Path) -> None:
    """Only the best evaluation keeps its worst images."""
    options = [*SHORT, 'train_cfg.val_interval=1', *NO_WORKERS, *ANY_SCORE]
    run_tool('train', config('mask_rcnn'), '--data-root', shapes / 'coco', '--work-dir',
             tmp_path / 'run', *options)
    run = read_run(tmp_path / 'run')
    assert [each['iteration'] for each in run.evaluations] == [1, 2]
    for each in map(run.read_details, run.evaluations):
        for part in ('bbox', 'segm'):
            ap = np.mean([ap for ap in each['classes'][f'{part}_ap'] if ap is not None])
            assert ap == pytest.approx(each['metrics'][f'coco/{part}_mAP'], abs=6e-4)
    worst = [path.parent.name for path in (tmp_path / 'run/record').glob('*/worst_0.jpg')]
    assert worst == [f'iter_{run.best["iteration"]}']
    taken = [{each['index'] for each in run.details[kind]} for kind in ('worst', 'best')]
    assert not taken[0] & taken[1]
    assert run.about['kind'] == 'masks' and run.main_metric == 'coco/segm_mAP'
    for title in ('Samples', 'Worst images'):
        assert 'Detections with a score of at least 0.3 are drawn' in build_report(run)[title].text


@pytest.mark.slow
def test_resume_continues_record(run_tool: Callable, shapes: Path, trained: Path) -> None:
    """Evaluations after the checkpoint are removed; here, the resumed run does not evaluate."""
    later = shutil.copytree(trained / 'record/iter_2', trained / 'record/iter_9')
    before = read(trained / 'record/run.json')['seconds']
    run_tool('train', config('sem_fpn'), '--data-root', shapes / 'ade', '--work-dir', trained,
             '--resume', *SHORT, 'train_cfg.max_iters=3', *NO_WORKERS, *NO_VAL)
    about = read(trained / 'record/run.json')
    assert [start['iteration'] for start in about['starts']] == [0, 2]
    assert about['starts'][1]['other_data'] == []
    assert about['seconds'] > before and about['iteration'] == 3 and not later.exists()
    assert 'validation' not in about['data']
    assert 'Resumed' in (trained / 'report.html').read_text()
    assert {'Losses and learning rate', 'Classes'} < build_report(read_run(trained)).keys()


@pytest.mark.slow
def test_resume_with_other_data(trained: Path) -> None:
    """Only evaluations of the last one's images are shown, and the change is reported."""
    later = shutil.copytree(trained / 'record/iter_2', trained / 'record/iter_4')
    evaluation, about = read(later / 'evaluation.json'), read(trained / 'record/run.json')
    evaluation |= dict(iteration=4)
    write_json(later / 'evaluation.json', evaluation)
    assert len(read_run(trained).drawn) == 2
    write_json(later / 'evaluation.json', evaluation | dict(samples=['other.png']))
    assert [each['iteration'] for each in read_run(trained).drawn] == [4]
    assert '1 with other images are omitted' in write_report(trained).read_text()
    write_json(later / 'evaluation.json', evaluation)
    now = dict(data=dict(training=about['data']['training'], validation=dict(images=9, files={})))
    assert find_changed_data(about, now) == ['validation'] and find_changed_data({}, now) == []
    about['starts'].append(dict(time='now', iteration=2, other_data=['validation']))
    write_json(trained / 'record/run.json', about)
    assert [each['iteration'] for each in read_run(trained).drawn] == [4]
    text = write_report(trained).read_text()
    assert 'at iteration 2, with other validation data.' in text
    assert 'data changed at iteration 2' in text


def test_damaged_details_keep_other_sections(trained: Path) -> None:
    path = trained / 'record/iter_2/details.json'
    details = read(path)
    details['classes']['iou'].pop()
    path.write_text(json.dumps(details))
    report = build_report(read_run(trained))
    assert {'Samples', 'Worst images', 'Classes'} < report.keys() and 'Confusion' not in report
    assert 'This part cannot be built: IndexError' in write_report(trained).read_text()


def test_commands(trained: Path) -> None:
    moved = trained.rename(trained.parent / 'it is moved')
    section, = build_command_sections(read_run(moved))
    test, *_, last = section.commands
    assert shlex.split(test) == ['colonnade', 'test', str(moved)]
    assert last.startswith('colonnade serve') and not section.text  # started by no command

    path = moved / 'record/run.json'
    about = read(path)
    assert describe_command(['ipykernel_launcher.py', '-f']) == {}
    words = ['colonnade train', 'own.py', '--cfg-options', 'data_root=a b']
    about['starts'][0] |= describe_command(words) | dict(processes=2)
    path.write_text(json.dumps(about))
    section, = build_command_sections(read_run(moved))
    assert 'the run had 2 processes' in section.text
    folder, again = (shlex.quote(str(path)) for path in (Path.cwd(), f'{moved}_again'))
    assert section.commands[-1] == (
        f"cd {folder} && colonnade train own.py --cfg-options 'data_root=a b' "
        f'--work-dir {again} --cfg-options randomness.seed={about["seed"]}')
    assert describe_command([f'{ROOT}/tools/train.py', 'a'])['command'] == \
        f'python {ROOT}/tools/train.py a'
    assert describe_command(['train.py', 'a']) == {}


def test_skipped_samples(trained: Path) -> None:
    assert build_skip_sections(read_run(trained)) == []
    lines = [json.dumps(dict(error=f'{name}.jpg is damaged')) for name in 'aba']
    (trained / 'skipped_samples.jsonl').write_text('\n'.join([*lines, '{"err']))
    (trained / 'skipped_samples_1.jsonl').write_text(f'{lines[0]}\n')  # of another process
    section, = build_skip_sections(read_run(trained))
    assert section.text.startswith('2 training samples could not be loaded')
    assert section.tables[0].rows == [('a.jpg is damaged', 3), ('b.jpg is damaged', 1)]


def test_read_damaged_metrics(tmp_path: Path) -> None:
    path = tmp_path / 'metrics.csv'
    path.write_text('iter,loss,mIoU\n1,0.5,\n2,inf,n/a\n3\n\n4,,7\n')
    run = read_run(tmp_path)
    assert {key: curve.tolist() for key, curve in run.curves.items()} == {
        'loss': [[1, 0.5]], 'mIoU': [[4, 7]]}  # yapf: disable
    assert [each['iteration'] for each in run.evaluations] == [4]
    path.write_text('iter,loss\nx,1\n')
    with pytest.raises(ValueError, match='is damaged: a row has no number in column iter'):
        read_columns(path)


@pytest.mark.slow
def test_train_without_report(run_tool: Callable, shapes: Path, tmp_path: Path) -> None:
    run_tool('train', config('sem_fpn'), '--data-root', shapes / 'ade', '--work-dir', tmp_path,
             '--no-report', *SHORT, 'train_cfg.max_iters=1', *NO_WORKERS, *NO_VAL)
    assert not (tmp_path / 'record').exists() and not (tmp_path / 'report.html').exists()


@pytest.mark.slow
def test_recorder_error_does_not_end_training(run_tool: Callable, shapes: Path, tmp_path: Path,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunRecord, 'strict', False)
    (tmp_path / 'record').write_text('a file where the folder should be')
    run_tool('train', config('sem_fpn'), '--data-root', shapes / 'ade', '--work-dir', tmp_path,
             *SHORT, *NO_WORKERS)
    assert (tmp_path / 'iter_2.pth').is_file()
    log = latest_log(tmp_path)
    assert 'mIoU' in log and log.count('the report lacks this evaluation: NotADirectoryError') == 1


@pytest.mark.slow
def test_report_of_failed_run(shapes: Path, tmp_path: Path, run_tool: Callable,
                              monkeypatch: pytest.MonkeyPatch) -> None:

    def fail(*_: object) -> None:
        raise UserError('no step')

    monkeypatch.setattr('colonnade.engine.runner.loops.GuardedLoop.take_step', fail)
    with pytest.raises(SystemExit, match='train: no step'):
        run_tool('train', config('sem_fpn'), '--data-root', shapes / 'ade', '--work-dir', tmp_path,
                 *SHORT, *NO_WORKERS)
    assert read(tmp_path / 'record/run.json')['state'] == 'stopped early'
    section, = build_command_sections(read_run(tmp_path))
    assert '--resume' in section.commands[0]
    with pytest.raises(FileNotFoundError, match='the run in .* has saved no checkpoint'):
        Run(tmp_path).find_model()


@pytest.mark.slow
def test_report_of_killed_run(trained: Path) -> None:
    about = read(trained / 'record/run.json') | dict(state='running', iteration=1)
    write_json(trained / 'record/run.json', about)
    with lock_folder(trained, ''):
        assert 'running; recorded up to iteration 2 of 2' in write_report(trained).read_text()
    about |= dict(iteration=0, seconds=0.)
    write_json(trained / 'record/run.json', about)
    text = write_report(trained).read_text()
    assert 'killed' in text and '--resume' in text
    iteration, seconds = read_run(trained).reached
    assert iteration == 2 and seconds > 0 and '<td>2 of 2</td>' in text
    assert f'<td>{format_duration(seconds)}</td>' in text and 'training iteration' in text


def test_escape_untrusted_text(trained: Path) -> None:
    evil = '<script>alert(1)</script>'
    about, path = read(trained / 'record/run.json'), trained / 'record/iter_2/evaluation.json'
    about |= dict(classes=[evil, *about['classes'][1:]], versions={evil: evil})
    about['data']['training']['files'] = {evil: evil}
    evaluation, details = read(path), read(path.parent / 'details.json')
    evaluation['samples'][0] = details['worst'][0]['name'] = f'{evil}.jpg'
    evaluation['metrics'][evil] = 1.
    path.write_text(json.dumps(evaluation))
    write_json(path.parent / 'details.json', details)
    write_json(trained / 'record/run.json', about)
    (trained / about['config_file']).write_text(f'x = {evil!r}')
    text = write_report(trained).read_text()
    assert '<script' not in text and text.count('&lt;script&gt;') >= 6


def test_report_of_many_classes(tmp_path: Path) -> None:
    """Tables are sorted, plots show the extremes, and omissions are stated."""
    number = 1203
    scores = [None if k % 10 == 0 else k / number for k in range(number)]
    names = [f'class {k} ' + 'x' * 40 for k in range(number)]
    confusion = [[k, (k + 1) % number, k + 1] for k in range(number)]
    evaluation = dict(
        classes=dict(objects=list(range(number)), bbox_ap=scores, precision=scores, recall=scores),
        curves={},
        confusion=confusion)
    run = RecordedRun(tmp_path, dict(classes=names),
                      [dict(iteration=1, metrics=dict(AP=1.), **evaluation)])
    sections = build_class_sections(run)
    table = next(section.tables[0] for section in sections if section.folded)
    assert len(table.rows) == number and table.rows[0][0] == names[1]
    assert table.rows[-1][2] is None
    confused = next(section for section in sections if section.title == 'Confusion')
    assert '1183 classes' in confused.plots[0][0]
    assert confused.tables[0].rows[0] == [names[1202], names[0], 1203, '100.0%']


def test_long_curves_are_thinned() -> None:
    curve = [(i, 1 / i + i % 2) for i in range(1, 20_001)]
    drawn = plots.draw_curves({'loss': curve, 'lr': curve[:3]}, 'loss', smooth=True)
    raw, smooth, short = drawn.axes[0].lines
    assert len(raw.get_xdata()) == len(smooth.get_xdata()) == 500 and len(short.get_xdata()) == 3
    assert smooth.get_xdata()[-1] == 20_000
    np.testing.assert_allclose(smooth.get_ydata()[100:400], 0.5, atol=0.01)
    assert len(render_figure(drawn)) < 100_000


def test_thin_evaluations() -> None:
    evaluations = [dict(iteration=i) for i in range(50)]
    shown = thin_evaluations(evaluations, evaluations[13], 7)
    assert len(shown) == 7 and evaluations[13] in shown
    assert shown[0] is evaluations[0] and shown[-1] is evaluations[-1]
    assert thin_evaluations(evaluations[:3], None, 7) == evaluations[:3]


def test_hash_of_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It depends on all names, but on few sizes."""
    monkeypatch.setattr('colonnade.engine.distributed.fingerprints.MAX_SIZES', 2)

    def change(content: bytes, name: str) -> str:
        (tmp_path / name).write_bytes(content)
        return compute_listing_checksum(str(tmp_path))

    (tmp_path / 'gone.jpg').symlink_to('nowhere.jpg')
    (tmp_path / 'loop').symlink_to('loop')
    for name in ('here', 'again'):  # Two would be followed 2**40 times.
        (tmp_path / name).symlink_to('.')
    for name in 'bcd':
        change(b'1', f'{name}.jpg')
    first = change(b'1', 'a.jpg')
    assert change(b'2', 'a.jpg') == change(b'12', 'c.jpg') == first
    second = change(b'12', 'a.jpg')
    (tmp_path / 'd.jpg').rename(tmp_path / 'dd.jpg')
    assert len({first, second, compute_listing_checksum(str(tmp_path))}) == 3


def test_known_hashes_are_not_computed_again() -> None:
    cfg = Config(dict(train_dataloader=dict(dataset=dict(data_root='nowhere', ann_file='a.json'))))
    known = {'nowhere/a.json': '7'}
    assert compute_data_checksums(cfg, 'train_dataloader', known) == known


@pytest.mark.slow
def test_build_report_again(run_tool: Callable, trained: Path, tmp_path: Path,
                            capsys: pytest.CaptureFixture[str]) -> None:
    expected = write_report(trained).read_bytes()
    (trained / 'report.html').unlink()
    run_tool('build_report', trained)
    assert (trained / 'report.html').read_bytes() == expected
    assert capsys.readouterr().out == f'written: {(trained / "report.html").as_uri()}\n'
    for folder, message in ((tmp_path, 'is not the work dir of a run'), (tmp_path / 'none',
                                                                         'is not a folder')):
        with pytest.raises(SystemExit, match=f'build-report: .*{message}'):
            run_tool('build_report', folder)
    (trained / 'record/run.json').write_text('{')
    with pytest.raises(SystemExit, match=r'run\.json is damaged'):
        run_tool('build_report', trained)


@pytest.mark.slow
@pytest.mark.parametrize('head, layout, measure, metric, unit', [
    ('mask_rcnn', 'coco', 'segm_ap', 'coco/segm_mAP', 1),
    ('sem_fpn', 'ade', 'iou', 'mIoU', 100),
])
def test_record_of_two_processes(head: str, layout: str, measure: str, metric: str, unit: int,
                                 shapes: Path, tmp_path: Path) -> None:
    """The record has each image once, although the sampler repeats one of three."""
    options = [*SHORT, 'train_cfg.max_iters=1', 'train_cfg.val_interval=1', *NO_WORKERS,
               'val_dataloader.dataset.indices=3',
               *(ANY_SCORE if head == 'mask_rcnn' else ())]  # yapf: disable
    run_two(
        'tools/train.py',
        config(head),
        '--data-root',
        shapes / layout,
        '--work-dir',
        tmp_path / 'run',
        '--launcher',
        'pytorch',
        *options,
        out=tmp_path)
    assert 'the report lacks' not in latest_log(tmp_path / 'run')
    run = read_run(tmp_path / 'run')
    found = run.read_details(run.last)
    assert found['recorded'] == found['images'] == 3
    values = [value for value in found['classes'][measure] if value is not None]
    assert unit * np.mean(values) == pytest.approx(found['metrics'][metric], abs=0.006)
    about = read(tmp_path / 'run/record/run.json')
    assert about['starts'][0]['processes'] == 2 and about['batch'] == 4
