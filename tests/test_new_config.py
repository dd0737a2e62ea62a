"""A config for one's own data: it trains as it is, or all that is wrong with the data is said."""
from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from conftest import NO_WORKERS, ROOT
from mmengine.config import Config

from colonnade.engine.own_data import meaning_of_labels
from colonnade.engine.schedule import schedule

CATEGORIES = {'person': 1, 'car': 3, 'dog': 18, 'bottle': 44, 'chair': 62}
STUFF = {'wall': 1, 'building': 2, 'sky': 3}  # in ADE20k's numbering
SHORT = [
    '--cfg-options', 'train_cfg.max_iters=2', 'default_hooks.checkpoint.interval=1',
    'train_dataloader.batch_size=2', 'val_dataloader=None', 'val_evaluator=None', 'val_cfg=None',
    *NO_WORKERS[:2]
]


def leaf(head: str, recipe: str = 'nano_12_p16_slim_{}') -> Path:
    data = 'coco' if head == 'mask_rcnn' else 'ade20k'
    return ROOT / f'configs/{head}/xcit_{recipe.format(data)}.py'


def trained_and_tested(run_tool: Callable, config: Path) -> dict[str, float]:
    """A short run of the config as it is, and its metrics."""
    work_dir = config.parent / 'run'
    run_tool('train', config, '--work-dir', work_dir, *SHORT)
    run_tool('test', config, work_dir / 'iter_2.pth', '--work-dir', work_dir, '--out',
             work_dir / 'm.json', '--cfg-options', 'test_dataloader.dataset.indices=4', *NO_WORKERS)
    return json.loads((work_dir / 'm.json').read_text())['metrics']


@pytest.fixture
def five_classes(real_data: dict[str, Path], tmp_path: Path) -> list[str | Path]:
    """COCO's images with the annotations of five of its classes, as arguments."""
    folder, files = real_data['coco'], []
    for split in ('train2017', 'val2017'):
        content = json.loads((folder / f'annotations/instances_{split}.json').read_text())
        kept = CATEGORIES.values()
        content['categories'] = [c for c in content['categories'] if c['id'] in kept]
        content['annotations'] = [a for a in content['annotations'] if a['category_id'] in kept]
        files.append(tmp_path / f'{split}.json')
        files[-1].write_text(json.dumps(content))
    return ['--coco', *files, '--images', folder / 'train2017', folder / 'val2017']


@pytest.fixture
def three_classes(real_data: dict[str, Path], tmp_path: Path) -> Path:
    """ADE20k's images with three classes, everything else unlabelled, in ADE20k's layout."""
    new_labels = np.zeros(256, np.uint8)
    new_labels[list(STUFF.values())] = range(1, 1 + len(STUFF))
    for split in ('training', 'validation'):
        (tmp_path / 'annotations' / split).mkdir(parents=True)
        shutil.copytree(real_data['ade'] / 'images' / split, tmp_path / 'images' / split)
        for path in (real_data['ade'] / 'annotations' / split).iterdir():
            label_map = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
            cv2.imwrite(str(tmp_path / 'annotations' / split / path.name), new_labels[label_map])
    return tmp_path


def test_instances(five_classes: list, tmp_path: Path, run_tool: Callable,
                   capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / 'own.py'
    run_tool('new_config', leaf('mask_rcnn'), *five_classes, '--out', out, '--batch-size', 4)
    assert 'remark: left out of training: 33 images without objects' in capsys.readouterr().out
    cfg = Config.fromfile(out)
    assert cfg.model.roi_head.bbox_head.num_classes == 5
    assert cfg.model.roi_head.mask_head.num_classes == 5
    for split in ('train', 'val', 'test'):
        metainfo = cfg[f'{split}_dataloader'].dataset.metainfo
        assert metainfo.classes == ('person', 'car', 'dog', 'bottle', 'chair')
        assert len(set(metainfo.palette)) == 5
    assert cfg.train_dataloader.batch_size == cfg.auto_scale_lr.base_batch_size == 4
    assert cfg.optim_wrapper.optimizer.lr == 1e-3
    assert cfg.train_cfg.max_iters == 1000

    metrics = trained_and_tested(run_tool, out)
    assert 0 <= metrics['coco/segm_mAP'] <= 1


@pytest.mark.parametrize('head', ['sem_fpn', 'upernet'])
def test_label_maps(head: str, three_classes: Path, tmp_path: Path, run_tool: Callable,
                    capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / 'own.py'
    run_tool('new_config', leaf(head), '--masks', three_classes, '--classes', *STUFF, '--out', out)
    printed = capsys.readouterr().out
    assert 'label 0 stands for unlabelled pixels: the 3 classes are the labels 1 to 3' in printed
    cfg = Config.fromfile(out)
    heads = [cfg.model.decode_head, cfg.model.get('auxiliary_head')]
    assert {head.num_classes for head in heads if head} == {3}
    dataset = cfg.train_dataloader.dataset
    assert dataset.reduce_zero_label and tuple(dataset.metainfo.classes) == tuple(STUFF)

    metrics = trained_and_tested(run_tool, out)
    assert 0 <= metrics['mIoU'] <= 100


def test_some_of_the_classes(five_classes: list, tmp_path: Path, run_tool: Callable) -> None:
    """In the file's order, which mmdet takes for their numbers."""
    out = tmp_path / 'two.py'
    run_tool('new_config', leaf('mask_rcnn', 'small_12_p16_3x_{}'), *five_classes, '--out', out,
             '--classes', 'chair', 'person', '--gpus', 4)
    cfg = Config.fromfile(out)
    assert cfg.train_dataloader.dataset.metainfo.classes == ('person', 'chair')
    assert cfg.model.roi_head.bbox_head.num_classes == 2
    assert cfg.optim_wrapper.optimizer.lr == 5e-5


def faults_of(run_tool: Callable, capsys: pytest.CaptureFixture[str], *arguments) -> list[str]:
    """The faults, and behind them the remarks, of a run that writes no config."""
    out = Path('own_that_is_not_written.py')
    with pytest.raises(SystemExit, match='no config was written'):
        run_tool('new_config', *arguments, '--out', out)
    assert not out.exists()
    said = capsys.readouterr()
    return [line for line in (said.err + said.out).splitlines() if ': ' in line]


def test_every_fault_of_instances(five_classes: list, tmp_path: Path, run_tool: Callable,
                                  capsys: pytest.CaptureFixture[str]) -> None:
    file, images = five_classes[1], tmp_path / 'images'
    shutil.copytree(five_classes[4], images)
    content = json.loads(file.read_text())
    usable = [a for a in content['annotations'] if not a['iscrowd']]
    by_id = {image['id']: image for image in content['images']}
    expected = []

    def broken(index: int, says: str, **changes: object) -> None:
        expected.append(f'annotation {changes.get("id", usable[index]["id"])}: {says}')
        usable[index].update(changes)

    image = by_id[usable[0]['image_id']]
    size = image['height'], image['width']
    broken(0, 'the RLE has 7 pixels', segmentation=dict(size=[*size], counts=[3, 4]))
    broken(1, 'the RLE must have', segmentation=dict(size=[5, 5], counts=[25]))
    broken(2, 'there is no image 7', image_id=7)
    broken(3, 'there is no category 99', category_id=99)
    broken(4, 'bbox must be', bbox=[1, 2, 3])
    broken(5, 'bbox must be', bbox=[1, 2, float('inf'), 3])
    broken(6, 'has no segmentation', segmentation=[])
    broken(7, 'ids must not be 0', id=0)
    broken(8, 'left out of training: empty', bbox=[5, 5, 0, 9])
    broken(9, 'left out of training: empty', area=0)
    broken(10, 'left out of training: box [5000, 5, 9, 9] lies outside', bbox=[5000, 5, 9, 9])
    broken(11, 'left out of training: no polygon', segmentation=[[1, 2, 3, 4]])
    broken(12, 'box [-4990, 0, 5000, 9] reaches 4990.0 pixels out', bbox=[-4990, 0, 5000, 9])
    broken(15, 'segmentation must be a list of polygons', segmentation=[1, 2, 3, 4, 5, 6])
    broken(16, 'area must be a number of pixels, got None', area=None)
    content['categories'].append(7)
    expected.append('categories: number 5 must have id, name, got 7')
    del usable[13]['area'], usable[13]['iscrowd']
    expected.append(f'id {usable[13]["id"]} has no area, iscrowd')
    content['annotations'].append(usable[14])
    expected.append(f'annotations: id {usable[14]["id"]} stands there more than once')
    content['categories'].append(dict(id=1, name='car'))
    expected += ['categories: id 1 stands there', "categories: more than one is named 'car'"]
    expected += ['must have the same categories in the same order']

    names = [image['file_name'] for image in content['images']]
    (images / names[0]).unlink()
    (images / names[1]).write_bytes(b'no JPEG')
    cv2.imwrite(str(images / names[2]), np.zeros((9, 8, 3), np.uint8))
    expected += [f'there is no {images}/{names[0]}', f'{images}/{names[1]} cannot be read']
    expected += [f'{images}/{names[2]} has 8 x 9 pixels']
    file.write_text(json.dumps(content))

    said = faults_of(run_tool, capsys, leaf('mask_rcnn'), *five_classes[:4], images,
                     five_classes[5])
    for text in expected:
        assert any(text in line for line in said), text


def test_a_box_beyond_the_border_trains(five_classes: list, tmp_path: Path, run_tool: Callable,
                                        capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads(five_classes[1].read_text())
    for annotation in content['annotations']:
        annotation['bbox'][0] -= 2000
        annotation['bbox'][2] += 2000
    five_classes[1].write_text(json.dumps(content))
    run_tool('new_config', leaf('mask_rcnn'), *five_classes, '--out', tmp_path / 'own.py')
    printed = capsys.readouterr().out
    assert 'pixels out of its image' in printed
    assert 'for 50 images' in printed


def test_images_and_label_maps_in_one_folder(three_classes: Path, tmp_path: Path,
                                             run_tool: Callable) -> None:
    for split in ('training', 'validation'):
        for path in (three_classes / 'annotations' / split).iterdir():
            path.rename(three_classes / 'images' / split / f'{path.stem}_labels.png')
    folders = [three_classes / 'images' / split for split in ('training', 'validation')]
    run_tool('new_config', leaf('sem_fpn'), '--masks', *folders, '--images', *folders, '--classes',
             *STUFF, '--suffixes', '.jpg', '_labels.png', '--out', tmp_path / 'own.py')
    dataset = Config.fromfile(tmp_path / 'own.py').train_dataloader.dataset
    assert (dataset.img_suffix, dataset.seg_map_suffix) == ('.jpg', '_labels.png')


@pytest.mark.parametrize('content, says', [
    ('{"images": [', 'cannot be read'),
    ('[]', 'needs images, annotations and categories'),
    ('{"images": [], "annotations": [], "categories": []}', 'no image has an annotation'),
])
def test_files_that_are_not_cocos(content: str, says: str, five_classes: list, run_tool: Callable,
                                  capsys: pytest.CaptureFixture[str]) -> None:
    five_classes[2].write_text(content)
    said = faults_of(run_tool, capsys, leaf('mask_rcnn'), *five_classes)
    assert any(f'{five_classes[2]}' in line and says in line for line in said)


def test_every_fault_of_label_maps(three_classes: Path, run_tool: Callable,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    masks = sorted((three_classes / 'annotations/training').iterdir())
    images = sorted((three_classes / 'images/training').iterdir())
    height, width = cv2.imread(str(masks[2]), cv2.IMREAD_UNCHANGED).shape
    masks[0].unlink()
    images[1].unlink()
    cv2.imwrite(str(masks[2]), np.zeros((height, width, 3), np.uint8))
    cv2.imwrite(str(masks[3]), np.zeros((5, 6), np.uint8))
    masks[4].write_bytes(b'no PNG')
    label_map = cv2.imread(str(masks[5]), cv2.IMREAD_UNCHANGED)
    cv2.imwrite(str(masks[5]), np.full_like(label_map, 4))
    label_map = cv2.imread(str(masks[6]), cv2.IMREAD_UNCHANGED)
    cv2.imwrite(str(masks[6]), np.full_like(label_map, 255))
    label_map = cv2.imread(str(masks[7]), cv2.IMREAD_UNCHANGED)
    cv2.imwrite(str(masks[7]), np.full(label_map.shape, 300, np.uint16))
    shutil.copy(images[8], images[8].with_suffix('.jpeg'))

    said = faults_of(run_tool, capsys, leaf('sem_fpn'), '--masks', three_classes, '--classes',
                     *STUFF, '--zero', 'unlabelled')

    expected = [
        f'{images[0]} has no label map {masks[0]}', f'{masks[1]} is not used',
        f'{masks[2]} or its image cannot be used: a label map has one channel, this has 3',
        f'{masks[3]} or its image cannot be used: the label map has 6 x 5 pixels',
        f'{masks[4]} or its image cannot be used', f'{masks[5]}: labels [4] have no class',
        f'{masks[6]}: every pixel is 255', f'{masks[7]} or its image cannot be used: labels must',
        'all files must have one extension, there are 18 .jpg, 1 .jpeg'
    ]
    for text in expected:
        assert any(text in line for line in said), text


@pytest.mark.parametrize('values, names, zero, classes, reduced', [
    ({0, 1, 2}, ['a', 'b'], None, ('a', 'b'), True),
    ({0, 1}, ['a', 'b'], None, ('a', 'b'), False),
    ({0, 1, 2}, ['a', 'b', 'c'], None, ('a', 'b', 'c'), False),
    ({1, 2}, None, None, ('label 1', 'label 2'), True),
    ({0, 2}, None, None, ('label 0', 'label 1', 'label 2'), False),
    ({0, 2}, None, 'unlabelled', ('label 1', 'label 2'), True),
    ({0, 1}, ['a'], None, ('background', 'a'), False),
    ({0, 1}, ['a', 'b'], 'unlabelled', ('a', 'b'), True),
])
def test_meaning_of_labels(values: set[int], names: list[str] | None, zero: str | None,
                           classes: tuple[str, ...], reduced: bool) -> None:
    assert meaning_of_labels(values, names, zero)[:2] == (classes, reduced)


@pytest.mark.parametrize('head, recipe, num_images, options, length, end_of_warm_up', [
    ('mask_rcnn', 'small_12_p16_3x_{}', 117266, dict(num_gpus=8), 36, 500),
    ('mask_rcnn', 'small_12_p16_3x_{}', 1000, {}, 36, 500),
    ('mask_rcnn', 'small_12_p16_3x_{}', 50, {}, 320, 500),
    ('mask_rcnn', 'small_12_p16_3x_{}', 50, dict(epochs=4), 4, 10),
    ('sem_fpn', 'small_12_p16_80k_{}', 20210, dict(num_gpus=8), 80000, 1500),
    ('sem_fpn', 'small_12_p16_80k_{}', 2021, dict(images_per_gpu=4), 32000, 1500),
    ('sem_fpn', 'small_12_p16_80k_{}', 1, dict(num_gpus=8), 1000, 100),
    ('sem_fpn', 'small_12_p16_80k_{}', 100, dict(epochs=10), 500, 50),
])
def test_schedule(head: str, recipe: str, num_images: int, options: dict, length: int,
                  end_of_warm_up: int) -> None:
    cfg = Config.fromfile(leaf(head, recipe))
    changes, _ = schedule(cfg, num_images, **options)
    loop = changes['train_cfg']
    warm_up, rest = changes['param_scheduler']
    assert loop.get('max_epochs', loop.get('max_iters')) == length == rest['end']
    assert warm_up['end'] == end_of_warm_up
    assert 1 <= loop['val_interval'] <= length
    if 'milestones' in rest:
        assert rest['milestones'] == [length * 3 // 4, round(length * 33 / 36)]


@pytest.mark.parametrize('arguments, message', [
    (['no.py', '--masks', '.'], 'no config file no.py'),
    (['{det}', '--masks', '.'], '--coco is for detectors, --masks for segmenters'),
    (['{det}', '--coco', 'a.json', 'b.json'], '--images must name'),
    (['{seg}', '--masks', 'a', 'b', '--images', 'c'], '--images must name two folders'),
    (['{seg}', '--masks', '.', '--out', '{seg}'], 'exists: name another --out'),
    (['{seg}', '--masks', '.', '--classes', 'a', 'a'], '--classes must be names that differ'),
    (['{seg}', '--masks', '.', '--gpus', '0'], '--gpus must be at least 1'),
    (['{uper}', '--masks', '.', '--batch-size', '1'], 'UPerHead normalises one value per image'),
])
def test_wrong_arguments_are_named(arguments: list[str], message: str, run_tool: Callable,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    names = dict(det=leaf('mask_rcnn'), seg=leaf('sem_fpn'), uper=leaf('upernet'))
    with pytest.raises(SystemExit, match='1'):
        run_tool('new_config', *(argument.format(**names) for argument in arguments))
    assert message in capsys.readouterr().err
