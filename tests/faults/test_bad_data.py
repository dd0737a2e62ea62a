"""Damaged data: detected before training, named when a sample fails to load, or skipped."""
from __future__ import annotations

import errno
import json
import logging
import re
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import LAYOUTS, NO_WORKERS, SHORT, TWO_PROCESSES, config, latest_log
from helpers.interrupted_runs import start
from mmengine.config import Config, ConfigDict
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS
from PIL import Image

from colonnade.datasets.bad_samples import SampleError, handle_bad_samples, is_storage_error
from colonnade.datasets.validation.coco_files import Usage
from colonnade.datasets.validation.dataset_report import format_report
from colonnade.datasets.validation.image_files import describe_read_error
from colonnade.datasets.validation.label_map_files import check_label_map
from colonnade.datasets.validation.listed_files import CheckLevel
from colonnade.datasets.validation.preflight import BadDataError, run_preflight_checks
from colonnade.datasets.validation.sources import Source, check_source, find_sources
from colonnade.engine.runner.log_filters import Printable, QuietFilter, StartFilter
from colonnade.runtime.sanitize import printable
from colonnade.settings.checks.all_checks import check_config
from colonnade.settings.dataset_paths import redirect_data_root
from colonnade.settings.findings import Finding
from colonnade.settings.reading import read_config

ANN_FILE = 'coco/annotations/instances_train2017.json'


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty cache folder."""
    monkeypatch.setenv('COLONNADE_CACHE', str(tmp_path / 'cache'))
    return tmp_path / 'cache'


@pytest.fixture
def data(shapes: Path, tmp_path: Path) -> Path:
    """Copy of the synthetic shapes, to be damaged."""
    return shutil.copytree(shapes, tmp_path / 'shapes')


@pytest.fixture
def check(run_tool: Callable, data: Path, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Function that runs check_dataset.py and returns message, findings, and counts by rule."""

    def run(head: str, *options: str | Path, split: str = 'train') -> dict[str, Any]:
        out = tmp_path / 'report.json'
        message: Any = None
        try:
            run_tool('check_dataset', config(head), '--data-root', data / LAYOUTS[head], '--split',
                     split, '--json', out, *options)
        except SystemExit as stopped:
            message = stopped.code
        content = json.loads(out.read_text())
        findings = [each for part in content['data_sets'] for each in part['findings']]
        counts = {each['kind']: each['number'] for part in content['data_sets']
                  for each in part['counts']}  # yapf: disable
        return dict(message=message, findings=findings, counts=counts)

    return run


@pytest.fixture
def train(run_tool: Callable, data: Path, tmp_path: Path) -> Callable[..., str]:
    """Function that trains for two iterations and returns the error message or the log."""

    def run(head: str, *options: str, more: tuple[str, ...] = ()) -> str:
        arguments = [config(head), '--data-root', data / LAYOUTS[head], '--work-dir',
                     tmp_path / 'run', '--no-report', *options, *SHORT,
                     'val_dataloader.dataset.indices=1', *NO_WORKERS, *more]  # yapf: disable
        try:
            run_tool('train', *arguments)
        except SystemExit as stopped:
            return str(stopped.code)
        return latest_log(tmp_path / 'run')

    return run


def test_only_training_skips_samples() -> None:
    lines = {}
    for split in ('train', 'val', 'test'):
        source = Source(f'{split}_dataloader.dataset', split, ConfigDict(), Usage(masks=False))
        source.report.add(Finding('damaged-image', 'a.jpg is truncated'))
        lines[split] = list(format_report(source))[1]
    assert 'training stops at them, or skips them (--on-bad-sample skip)' in lines['train']
    assert 'training stops at them. To do: ' in lines['val']
    assert 'evaluation stops at them. To do: ' in lines['test']


def list_images(data: Path, layout: str) -> list[Path]:
    """Return the sorted training images of a dataset."""
    folder = 'coco/train2017' if layout == 'coco' else 'ade/images/training'
    return sorted((data / folder).iterdir())


def truncate(path: Path) -> None:
    """Keep the first half of a file."""
    path.write_bytes(path.read_bytes()[:path.stat().st_size // 2])


def truncate_in_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20])


def make_empty(path: Path) -> None:
    path.write_bytes(b'')


def replace_by_text(path: Path) -> None:
    path.write_text('<html>not found</html>')


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def break_link(path: Path) -> None:
    path.unlink()
    path.symlink_to('/nowhere/a.jpg')


def swap_sides(path: Path) -> None:
    Image.open(path).resize((32, 64)).save(path)


DAMAGES = [(Path.unlink, 'missing-file', 'does not exist'), (make_empty, 'empty-file', '0 bytes'),
           (truncate, 'damaged-image', 'truncated or damaged: '),
           (replace_by_text, 'not-an-image', 'it is not an image'),
           (replace_by_folder, 'unreadable-file', 'Is a directory'),
           (break_link, 'broken-link', 'is a link to /nowhere/a.jpg, which does not exist'),
           (swap_sides, 'other-size', '32 x 64 pixels, but its annotations say 64 x 64'),
           (truncate_in_header, 'damaged-image', 'truncated or damaged: ')]  # yapf: disable


def test_check_dataset_lists_damaged_images(check: Callable, data: Path) -> None:
    """Each finding has the file and ID of the image, and advice."""
    paths = list_images(data, 'coco')
    for path, (damage, _, _) in zip(paths, DAMAGES, strict=False):
        damage(path)
    found = check('mask_rcnn')
    assert found['message'] == 'check-dataset: 7 findings would make training or evaluation fail'
    assert len(found['findings']) == len(DAMAGES)
    for path, (_, kind, text), each in zip(paths, DAMAGES, found['findings'], strict=False):
        assert each['kind'] == kind and text in each['fault'] and str(path) in each['fault']
        assert each['file'] == path.name and each['id'] and each['advice']


def test_valid_data_have_no_findings(check: Callable) -> None:
    for head in ('mask_rcnn', 'sem_fpn'):
        assert check(head) == dict(message=None, findings=[], counts={})


def test_check_dataset_lists_invalid_annotations(check: Callable, data: Path) -> None:
    """Errors that mmdet ignores do not stop training."""
    nan, polygon = float('nan'), [90, 90, 99, 90, 99, 99]
    changes: dict[str, tuple[dict[str, Any], bool]] = {
        'wrong-value': (dict(bbox=[1, 2, nan, 4]), True),
        'unknown-image': (dict(image_id=10**6), False),
        'unknown-category': (dict(category_id=99), False),
        'no-segmentation': (dict(segmentation=[]), True),
        'wrong-segmentation': (dict(segmentation=[[1, 2, 3, nan, 5, 6]]), True),
        'few-points': (dict(segmentation=[[1, 2, 3, 4]]), False),
        'box-outside': (dict(bbox=[900, 900, 5, 5]), False),
        'empty-box': (dict(bbox=[9, 9, 0, 5]), False),
        'mask-outside': (dict(segmentation=[polygon]), False),
    }
    content = json.loads((data / ANN_FILE).read_text())
    annotations = content['annotations']
    for annotation, (change, _) in zip(annotations, changes.values(), strict=False):
        annotation.update(change)
    del annotations[9]['area'], annotations[10]['iscrowd']
    annotations[11]['segmentation'] = dict(size=[9, 9], counts=[81])
    annotations.append(annotations[12])
    content['images'].append(content['images'][0])
    content['categories'].append(content['categories'][0])
    (data / ANN_FILE).write_text(json.dumps(content))
    found = check('mask_rcnn')
    stops = {each['kind'] for each in found['findings'] if each['effect'] in ('loading', 'sample')}
    assert stops == {kind for kind, (_, stops) in changes.items() if stops} | {
        'incomplete-entry', 'repeated-annotation-id', 'repeated-category'}  # yapf: disable
    assert changes.keys() | {'no-iscrowd', 'repeated-image-id'} <= found['counts'].keys()
    assert found['counts']['wrong-segmentation'] == 2
    assert all(each['advice'] and each['file'] for each in found['findings'])


def save_rgb(path: Path) -> None:
    Image.open(path).convert('RGB').save(path)


def save_16_bits(path: Path) -> None:
    Image.fromarray(np.full((64, 64), 700, np.uint16)).save(path)


def save_label(path: Path) -> None:
    Image.fromarray(np.full((64, 64), 77, np.uint8)).save(path)


def test_check_dataset_lists_damaged_label_maps(check: Callable, data: Path) -> None:
    damages = [(Path.unlink, 'no-label-map', 'has no label map'),
               (save_rgb, 'wrong-label-map', 'a label map must have one channel, got 3'),
               (swap_sides, 'other-label-map', '32 x 64 pixels, but the image has 64 x 64'),
               (save_16_bits, 'wrong-label-map', 'labels must be 0 to 255, got 700 to 700'),
               (truncate, 'damaged-image', 'truncated or damaged'),
               (make_empty, 'empty-file', '0 bytes'),
               (save_label, 'unknown-label', 'has label 76, but the config has 4 classes')]
    maps = sorted((data / 'ade/annotations/training').iterdir())
    for path, (damage, *_) in zip(maps, damages, strict=False):
        damage(path)
    found = check('sem_fpn')
    assert found['message'] == 'check-dataset: 6 findings would make training or evaluation fail'
    assert [each['kind'] for each in found['findings']] == [kind for _, kind, _ in damages]
    for each, (*_, text) in zip(found['findings'], damages, strict=True):
        assert text in each['fault']


def test_check_dataset_lists_unpaired_label_maps(check: Callable, data: Path) -> None:
    list_images(data, 'ade')[2].unlink()
    found = check('sem_fpn')
    assert found['message'] is None and found['counts'] == {'no-image': 1}
    assert found['findings'][0]['fault'].endswith('.png has no image')


def test_preflight_check_opens_images(data: Path) -> None:
    path = list_images(data, 'ade')[2]
    replace_by_text(path)
    cfg = read_config(config('sem_fpn'))
    redirect_data_root(cfg, data / 'ade')
    with pytest.raises(BadDataError, match=f'{path} cannot be read: it is not an image'):
        run_preflight_checks(cfg, skip=False)


def test_check_dataset_in_shards(run_tool: Callable, check: Callable, data: Path,
                                 tmp_path: Path) -> None:
    truncate(list_images(data, 'coco')[0])
    run_tool('make_shards', config('mask_rcnn'), tmp_path / 'shards', '--data-root', data / 'coco')
    found = check('mask_rcnn', '--data-root', tmp_path / 'shards')
    assert found['counts'] == {'damaged-image': 1}


def test_datasets_with_same_files_are_checked_once(data: Path) -> None:
    cfg = read_config(config('mask_rcnn'))
    redirect_data_root(cfg, data / 'coco')
    dataset = cfg.train_dataloader.dataset
    cfg.train_dataloader.dataset = dict(type='ConcatDataset', datasets=[dataset, dataset])
    cfg.val_dataloader.dataset = dict(type='RepeatDataset', times=2,
                                      dataset=cfg.val_dataloader.dataset)  # yapf: disable
    names = [source.name for source in find_sources(cfg, ('train', 'val', 'test'))]
    assert names == ['train_dataloader.dataset.datasets[0]', 'val_dataloader.dataset.dataset']


def test_file_names_are_printed_in_one_line(check: Callable, data: Path,
                                            capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads((data / ANN_FILE).read_text())
    content['images'][0]['file_name'] = 'a\n\x1b[31mb.jpg'
    (data / ANN_FILE).write_text(json.dumps(content))
    check('mask_rcnn')
    assert r'a\n\x1b[31mb.jpg' in capsys.readouterr().out


def test_missing_images_stop_training(train: Callable, data: Path) -> None:
    missing = list_images(data, 'coco')[3]
    missing.unlink()
    says = train('mask_rcnn')
    assert says.startswith('train: training would stop at its data:\n  train_dataloader.dataset: '
                           'missing files (1): ')
    assert says.count(str(missing)) == 1 and '\n    To do: restore the file' in says
    assert '--on-bad-sample skip' in says


def test_missing_images_that_training_omits(data: Path) -> None:
    """mmdet can be configured to omit images without annotations."""
    content = json.loads((data / ANN_FILE).read_text())
    first = content['images'][0]
    content['annotations'] = [each for each in content['annotations']
                              if each['image_id'] != first['id']]  # yapf: disable
    (data / ANN_FILE).write_text(json.dumps(content))
    (data / 'coco/train2017' / first['file_name']).unlink()
    cfg = read_config(config('mask_rcnn'))
    redirect_data_root(cfg, data / 'coco')
    cfg.train_dataloader.dataset.filter_cfg = dict(filter_empty_gt=True)
    run_preflight_checks(cfg, skip=False)
    cfg.train_dataloader.dataset.filter_cfg = None
    run_preflight_checks(cfg, skip=True)  # warns
    with pytest.raises(BadDataError, match=first['file_name'] + ' does not exist'):
        run_preflight_checks(cfg, skip=False)


def test_preflight_result_is_cached(data: Path, cache: Path,
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """It is cached until a file changes. A damaged cache is recreated, a missing one no error."""
    read: list[str] = []

    def record_check(cfg: Config, source: Source, level: CheckLevel) -> None:
        read.append(source.name)
        check_source(cfg, source, level)

    def record_label_map(*arguments: Any) -> Any:
        labels.append(arguments[0])
        return check_label_map(*arguments)

    labels: list[Any] = []
    for module in ('label_map_files', 'listed_files'):
        monkeypatch.setattr(f'colonnade.datasets.validation.{module}.check_label_map',
                            record_label_map)
    monkeypatch.setattr('colonnade.datasets.validation.preflight.check_source', record_check)
    cfg = read_config(config('sem_fpn'))
    redirect_data_root(cfg, data / 'ade')

    def count_checks() -> int:
        read.clear()
        run_preflight_checks(cfg, skip=False)
        return len(read)

    assert count_checks() == 2 and labels
    labels.clear()
    check_config(cfg, ('train_dataloader', 'val_dataloader'))
    assert count_checks() == 0 and not labels
    for path in cache.rglob('*.json'):
        path.write_text('{"states": 3')
    assert [count_checks(), count_checks()] == [2, 0]
    path = list_images(data, 'ade')[0]
    path.write_bytes(path.read_bytes() + b'x')
    assert count_checks() == 1
    (path.parent / 'new.jpg').write_bytes(path.read_bytes())
    with pytest.raises(
            BadDataError, match=r'images without a label map \(1\): .*new.jpg has no label'):
        count_checks()
    (path.parent / 'new.jpg').unlink()
    shutil.rmtree(cache)
    cache.write_text('a file')
    assert [count_checks(), count_checks()] == [2, 2]


def test_errors_are_not_cached(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Disks and permissions can be fixed without changing a file."""
    cfg = read_config(config('mask_rcnn'))
    redirect_data_root(cfg, data / 'coco')
    with monkeypatch.context() as patch:
        patch.setattr('colonnade.datasets.validation.listed_files.check_header',
                      lambda path, *_, **__: describe_read_error(path, OSError(5, 'no answer')))
        with pytest.raises(BadDataError, match='cannot be read: no answer'):
            run_preflight_checks(cfg, skip=False)
    run_preflight_checks(cfg, skip=False)


def test_tolerated_annotations_do_not_stop_training(data: Path) -> None:
    """IDs are large, widths wrong in the file only, and some entries are not used."""
    content = json.loads((data / ANN_FILE).read_text())
    for entry in content['images']:
        entry.update(id=entry['id'] + 2**60, width=entry['width'] + 1)
    for entry in content['annotations']:
        entry.update(image_id=entry['image_id'] + 2**60)
    content['annotations'][0].update(ignore=1, area=None)
    content['annotations'][1].update(image_id=99, area=None)
    content['categories'] += [dict(id=97, name='')] + [dict(id=n, name='z') for n in (98, 99)]
    (data / ANN_FILE).write_text(json.dumps(content))
    cfg = read_config(config('mask_rcnn'))
    redirect_data_root(cfg, data / 'coco')
    cfg.val_evaluator.metric = 'bbox'
    file = Path(cfg.val_evaluator.ann_file)
    content = json.loads(file.read_text())
    content['annotations'][0]['segmentation'] = [[1, 1, 5, 5]]
    file.write_text(json.dumps(content))
    run_preflight_checks(cfg, skip=False)


@pytest.mark.parametrize('step, stops', [
    (dict(type='LoadImageFromFile'), True),
    (dict(type='LoadImageFromFile', color_type='unchanged'), False),
    (dict(type='LoadImageFromFile', imdecode_backend='tifffile'), False),
    (dict(type='LoadImageFromNDArray'), False),
])  # yapf: disable
def test_floating_point_images(step: dict[str, Any], stops: bool, data: Path) -> None:
    """They are rejected only if OpenCV would convert them to 8 bits."""
    for path in list_images(data, 'coco'):
        Image.open(path).convert('F').save(path, format='TIFF')
    cfg = read_config(config('mask_rcnn'))
    redirect_data_root(cfg, data / 'coco')
    cfg.train_dataloader.dataset.pipeline[0] = step
    for whole in (False, True):
        source, = find_sources(cfg, ('train', ))
        check_source(cfg, source, CheckLevel(whole))
        assert source.report.count_effects('sample') == stops * len(list_images(data, 'coco'))


@pytest.mark.parametrize('kind, stops', [('CocoMetric', True), ('FasterCocoMetric', False)])
def test_pycocotools_needs_iscrowd(kind: str, stops: bool, data: Path) -> None:
    """faster-coco-eval assumes 0."""
    cfg = read_config(config('mask_rcnn'))
    redirect_data_root(cfg, data / 'coco')
    cfg.val_evaluator.type = kind
    file = Path(cfg.val_evaluator.ann_file)
    content = json.loads(file.read_text())
    del content['annotations'][0]['iscrowd']
    file.write_text(json.dumps(content))
    source, = find_sources(cfg, ('val', ))
    check_source(cfg, source, CheckLevel())
    assert dict(source.report.counts) == {
        ('no-iscrowd', 'loading' if stops else 'meaning'): 1,
        ('skipped-check', 'none'): 1,
        ('partly-checked', 'none'): 1
    }


def train_with_truncated_image(train: Callable,
                               data: Path,
                               *options: str,
                               more: tuple[str, ...] = ()) -> str:
    """Train with an image that is damaged after its header, which the preflight check misses."""
    truncate(list_images(data, 'ade')[3])
    return train('sem_fpn', *options, more=more)


ALL_IMAGES = ('train_dataloader.batch_size=12', 'train_cfg.max_iters=1')  # in a single iteration


@pytest.mark.parametrize('workers', [0, 2])
def test_error_names_the_bad_sample(workers: int, train: Callable, data: Path,
                                    capfd: pytest.CaptureFixture[str]) -> None:
    says = train_with_truncated_image(train, data, more=(
        *ALL_IMAGES, f'train_dataloader.num_workers={workers}'))  # yapf: disable
    path = list_images(data, 'ade')[3]
    assert says == (f'train: sample {path} with {data}/ade/annotations/training/{path.stem}.png '
                    '(index 3, BaseSegDataset) cannot be loaded: AssertionError: failed to load '
                    f'image: {path}. run colonnade check-dataset CONFIG to list all samples that '
                    'fail; '
                    '--on-bad-sample skip uses other samples instead')  # yapf: disable
    assert 'Traceback' not in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize('workers', [0, 2])
def test_bad_sample_is_skipped(workers: int, train: Callable, data: Path, tmp_path: Path) -> None:
    log = train_with_truncated_image(train, data, '--on-bad-sample', 'skip', more=(
        *ALL_IMAGES, f'train_dataloader.num_workers={workers}'))  # yapf: disable
    path = list_images(data, 'ade')[3]
    assert f'skipped: sample {path}' in log and 'skipped 1 samples ' in log
    lines = (tmp_path / 'run/skipped_samples.jsonl').read_text().splitlines()
    assert lines and all(str(path) in json.loads(line)['error'] for line in lines)


@pytest.mark.slow
def test_label_maps_of_other_size_are_skipped(train: Callable, data: Path) -> None:
    """Label maps with several channels are skipped, too; they would not fit into a batch."""
    maps = sorted((data / 'ade/annotations/training').iterdir())
    swap_sides(maps[2])
    save_rgb(maps[5])
    log = train('sem_fpn', '--on-bad-sample', 'skip', more=ALL_IMAGES)
    assert 'skipped 2 samples ' in log


@pytest.mark.parametrize('damage, says', [
    (swap_sides, 'loaded: the label map has 32 x 64 pixels, but the image has 64 x 64. the advice'),
    (save_rgb, 'loaded: a label map must have one channel, got 3. the advice'),
    (make_empty, '002.png is empty: 0 bytes. the advice'),
])
def test_label_maps_that_do_not_fit_images(damage: Callable, says: str, data: Path,
                                           tmp_path: Path) -> None:
    cfg = read_config(config('sem_fpn'))
    redirect_data_root(cfg, data / 'ade')
    damage(sorted((data / 'ade/annotations/training').iterdir())[2])
    for settings in (cfg.train_dataloader.dataset, cfg.test_dataloader.dataset):
        settings.data_prefix = cfg.train_dataloader.dataset.data_prefix
        dataset = DATASETS.build(settings)
        steps = [*dataset.pipeline.transforms]
        handle_bad_samples(dataset, None, 'the advice')
        assert dataset.pipeline.transforms == steps  # indices are those of the config
        assert dataset[1]
        with pytest.raises(SampleError, match=f'{re.escape(says)}$'):
            dataset[2]
    handle_bad_samples(dataset := DATASETS.build(settings), tmp_path / 'skipped.jsonl')
    assert dataset[2]['data_samples'].img_path == dataset[3]['data_samples'].img_path


def test_next_sample_replaces_bad_one(data: Path, tmp_path: Path) -> None:
    """The first sample follows the last one; at most a hundred samples are tried."""

    class Numbers(BaseDataset):
        broken: tuple[int, ...] = (1, 2, 4)

        def load_data_list(self) -> list[dict[str, Any]]:
            return [dict(img_path=f'{number}.jpg', img_id=number) for number in range(5)]

        def prepare_data(self, idx: int) -> int:
            if idx in self.broken:
                raise ValueError('broken')
            return idx

    numbers = Numbers(serialize_data=False)  # it would run the garbage collector
    handle_bad_samples(numbers, tmp_path / 'skipped.jsonl')
    assert [numbers[index] for index in range(5)] == [0, 3, 3, 3, 0]
    lines = [json.loads(line) for line in (tmp_path / 'skipped.jsonl').read_text().splitlines()]
    assert [line['index'] for line in lines] == [1, 2, 2, 4]
    assert lines[0].items() >= dict(data='Numbers', file='1.jpg', id=1).items()
    numbers.broken = (0, 1, 2, 3, 4)
    with pytest.raises(
            SampleError, match='5 samples in a row cannot be loaded; the first: sample 0'):
        numbers[0]
    numbers.prepare_data.skipped = Path('/dev/full')  # type: ignore[attr-defined]
    with pytest.raises(SampleError, match='5 samples in a row cannot be loaded'):
        numbers[0]


@pytest.mark.parametrize('number', [errno.EIO, errno.ESTALE, errno.ENETDOWN, errno.ETIMEDOUT])
def test_storage_errors_are_not_bad_samples(number: int) -> None:
    assert is_storage_error(OSError(number, 'no answer'))
    assert not is_storage_error(OSError(errno.ENOENT, 'absent')) and not is_storage_error(
        ValueError())


def test_unprintable_characters_are_escaped() -> None:
    assert printable('a\udcff\x1b\u202e\n') == 'a\\udcff\\x1b\\u202e\n'


def test_malformed_log_line_raises_nothing(capsys: pytest.CaptureFixture) -> None:
    logger = logging.Logger('malformed')
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(StartFilter())
    logger.addHandler(handler)
    logger.addFilter(Printable())
    logger.addFilter(QuietFilter())
    logger.info('epoch', 3)
    said = capsys.readouterr().err
    assert said.startswith('epoch (3,) (the format string') and 'test_bad_data.py' in said


@pytest.mark.slow
def test_validation_samples_are_never_skipped(train: Callable, data: Path) -> None:
    path = min((data / 'ade/images/validation').iterdir())
    truncate(path)
    says = train('sem_fpn', '--on-bad-sample', 'skip')
    assert says.startswith(f'train: sample {path} with') and 'failed to load image' in says


def test_testing_names_the_bad_sample(run_tool: Callable, trained: Path, data: Path) -> None:
    path = min((data / 'ade/images/validation').iterdir())
    truncate(path)
    with pytest.raises(SystemExit, match=f'^test: sample {path} with'):
        run_tool('test', config('sem_fpn'), trained / 'iter_2.pth', '--data-root', data / 'ade',
                 '--work-dir', trained, '--cfg-options', *NO_WORKERS)


@pytest.mark.slow
def test_all_processes_stop_at_bad_data(data: Path, tmp_path: Path) -> None:
    """Only one process checks the data, and none waits forever."""
    gone = list_images(data, 'ade')[3]
    gone.with_name('more.jpg').write_bytes(gone.read_bytes())
    with socket.create_server(('127.0.0.1', 0)) as server:
        port = server.getsockname()[1]
    # not torchrun, which kills the other process as soon as one fails
    programs = [
        start('tools/train.py', config('sem_fpn'), '--launcher', 'pytorch', '--data-root',
              data / 'ade', '--work-dir', tmp_path / 'run', *SHORT, *NO_WORKERS, RANK=rank,
              LOCAL_RANK=rank, WORLD_SIZE='2', MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port),
              **TWO_PROCESSES) for rank in '01'
    ]  # yapf: disable
    for program in programs:
        says = program.communicate(timeout=300)[0]
        assert program.returncode == 1
        assert says.count('train: training would stop at its data:') == 1
        assert says.count('more.jpg has no label map') == 1
