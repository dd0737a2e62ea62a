"""Dataset browser: contents, statistics and suspected issues of its page."""
from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import cv2
import mmdet.datasets  # noqa: F401, imported by configs anyway
import mmseg.datasets  # noqa: F401
import numpy as np
import pytest
import torch
from conftest import ROOT, config
from mmengine.config import ConfigDict
from mmengine.dataset import DefaultSampler
from mmengine.registry import MODELS, DefaultScope
from mmengine.runner import Runner, set_random_seed
from PIL import Image
from pycocotools.coco import COCO

from colonnade.settings.reading import LaunchOptions, load_config
from colonnade.visualization.dataset_browser import BrowseOptions, BrowseResult, browse_dataset
from colonnade.visualization.dataset_browser.browser import derive_seed
from colonnade.visualization.dataset_browser.dataset_reader import (build_dataset, find_label,
                                                                    get_dataset_settings, read_set,
                                                                    select_images)
from colonnade.visualization.dataset_browser.image_scan import (compute_hash, find_similar_pairs,
                                                                hash_images, shrink_to_gray)
from colonnade.visualization.dataset_browser.model_inputs import InputPipeline, ModelInput
from colonnade.visualization.dataset_browser.object_issues import find_box_pairs
from colonnade.visualization.dataset_browser.objects import Objects
from colonnade.visualization.dataset_browser.statistics import plot_classes

COCO_CONFIG = ROOT / 'configs/mask_rcnn/xcit_nano_12_p16_slim_coco.py'
ADE_CONFIG = ROOT / 'configs/sem_fpn/xcit_nano_12_p16_slim_ade20k.py'
HEADS = pytest.mark.parametrize('head, layout', [('mask_rcnn', 'coco'), ('sem_fpn', 'ade')])


def count_issues(result: BrowseResult) -> dict[str, dict[str, int]]:
    """Return the number of breaches of each rule in each split that has any."""
    return {
        issue.rule: {name: number for name, number in issue.counts.items() if number}
        for issue in result.issues if issue.count
    }  # yapf: disable


def read_cfg(head: str, root: Path, **options: Any) -> Any:
    return load_config(LaunchOptions(config(head), data_root=root, cfg_options=options or None))


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Omit plots, which take most of the time of a small page; tests on real data draw them."""
    monkeypatch.setattr('colonnade.visualization.dataset_browser.browser.plot_statistics',
                        lambda splits: [])


@pytest.fixture
def browse(tmp_path: Path, no_plots: None) -> Callable[..., BrowseResult]:

    def run(head: str, root: Path, **options: Any) -> BrowseResult:
        return browse_dataset(config(head), out=tmp_path / 'page.html', num=12, num_views=1,
                              data_root=root, **options)  # yapf: disable

    return run


@pytest.mark.slow
def test_statistics_match_pycocotools(real_data: dict[str, Path], tmp_path: Path) -> None:
    result = browse_dataset(COCO_CONFIG, out=tmp_path / 'page.html', index=(3, 4), num_views=1,
                            data_root=real_data['coco'])  # yapf: disable
    for statistics, split in zip(result.statistics, ('train', 'val'), strict=True):
        file = COCO(real_data['coco'] / f'annotations/instances_{split}2017.json')
        classes = statistics.classes
        assert statistics.num_images == len(file.imgs)
        objects = file.loadAnns(file.getAnnIds(iscrowd=False))
        names = [file.cats[each['category_id']]['name'] for each in objects]
        assert statistics.amounts.tolist() == [names.count(name) for name in classes]
        has = [{name for name, each in zip(names, objects, strict=True) if each['image_id'] == i}
               for i in file.imgs]  # yapf: disable
        assert statistics.images.tolist() == [sum(n in h for h in has) for n in classes]
        person, chair = classes.index('person'), classes.index('chair')
        assert statistics.together[person, chair] == sum({'person', 'chair'} <= h for h in has)
        assert np.array_equal(statistics.together, statistics.together.T)
    issues = count_issues(result)
    assert issues['image-without-annotations'] == {'train': 3}
    assert not issues.keys() & {'similar-images', 'split-images'}
    text = result.page.read_text()
    assert text.count('<figure') == 2 + 4 + 10 + 7  # images, model inputs, plots, issues
    assert 'http' not in text.replace('http://www.w3.org', '')


def test_remote_data_is_an_error(shapes: Path) -> None:
    cfg = read_cfg('mask_rcnn', shapes / 'coco')
    cfg.train_dataloader.dataset.data_root = 's3://bucket'
    with pytest.raises(ValueError, match='s3://bucket/annotations/.* cannot be browsed'):
        read_set(cfg, 'train')


@pytest.mark.slow
def test_statistics_match_label_maps(real_data: dict[str, Path], tmp_path: Path) -> None:
    """Label 0 is unlabeled; every other pixel is counted once."""
    result = browse_dataset(
        ADE_CONFIG, out=tmp_path / 'page.html', num=1, num_views=1, data_root=real_data['ade'])
    folder = real_data['ade'] / 'annotations/training'
    maps = [np.asarray(Image.open(path)) for path in sorted(folder.glob('*.png'))]
    train = result.statistics[0]
    _, plot = plot_classes(result.statistics)
    assert plot.legends and plot.axes[0].get_legend() is None  # above the data
    counts = sum(np.bincount(labels.ravel(), minlength=151) for labels in maps)
    assert train.amounts.tolist() == counts[1:].tolist()
    assert np.allclose(train.unlabeled, [(m == 0).mean() for m in maps])
    assert set(count_issues(result)) == {'islands', 'rare-label'}


def reencode(path: Path, factor: float, quality: int) -> np.ndarray:
    """Return an image resized and compressed as JPEG."""
    with Image.open(path) as image:
        size = round(image.width * factor), round(image.height * factor)
        content = BytesIO()
        image.convert('RGB').resize(size).save(content, 'JPEG', quality=quality)
    return np.array(Image.open(content))


def test_find_resized_duplicates(real_data: dict[str, Path], tmp_path: Path) -> None:
    """Every resized copy is found, and no other pair."""
    paths = sorted(path for folder in real_data.values() for path in folder.rglob('*.jpg'))
    for index, path in list(enumerate(paths))[::10]:
        Image.fromarray(reencode(path, 0.6, 70)).save(tmp_path / f'{index}.bmp')
    copies = sorted(tmp_path.iterdir())
    images = [(0, i, str(path)) for i, path in enumerate(paths)]
    images += [(1, int(path.stem), str(path)) for path in copies]
    pairs = find_similar_pairs(hash_images(images))
    assert len(pairs) == len(copies) == 14
    assert all(pair.first == (0, pair.second[1]) and not pair.is_same_file for pair in pairs)


def test_hash_bits() -> None:
    """A bit is set for each pixel that is brighter than its left neighbor, row by row."""
    gray = np.zeros((8, 9), np.uint8)
    gray[0, 1] = gray[7, 8] = 9
    assert compute_hash(gray) == 1 << 63 | 1
    ramp = np.tile(np.arange(90, dtype=np.uint8)[None, :, None], (16, 1, 3))
    assert compute_hash(shrink_to_gray(ramp)) == 2**64 - 1


@pytest.fixture
def faulty(shapes: Path, tmp_path: Path) -> Path:
    """Synthetic shapes with a breach of each rule, and a class named ``<b>``."""
    root = Path(shutil.copytree(shapes / 'coco', tmp_path / 'coco'))
    file = root / 'annotations/instances_train2017.json'
    content = json.loads(file.read_text())
    images, annotations = content['images'], content['annotations']
    content['categories'][0]['name'] = '<b>'
    boxes = {1: [5, 5, 1, 20], 2: [50, 50, 30, 10], 3: [0, 0, 64, 64], 4: [1, 1, 60, 2]}
    polygons = {5: [[10, 10, 30, 30, 30, 10, 10, 30]], 6: [[40, 40, 60, 40, 60, 60, 40, 60]]}
    annotations = [each for each in annotations if each['image_id'] > 7 and each['image_id'] != 9]
    annotations += [
        dict(id=1000 + place, image_id=number, category_id=1, area=100, iscrowd=0,
             bbox=boxes.get(number, [10, 10, 20, 20]), segmentation=polygons.get(number, []))
        for place, number in enumerate((1, 2, 3, 4, 5, 6, 7, 7))
    ]  # yapf: disable
    annotations += [
        dict(id=5000, image_id=8, category_id=1, area=1, iscrowd=0),
        dict(id=5001, image_id=99, category_id=1, area=1, bbox=[1, 1, 2, 2])
    ]
    content['annotations'] = annotations
    images[9]['width'] += 2
    (root / 'train2017' / images[10]['file_name']).write_bytes(b'no image')
    file.write_text(json.dumps(content))
    val = root / 'annotations/instances_val2017.json'
    val.write_text(val.read_text().replace('"disc"', '"<b>"'))
    shutil.copy(root / 'train2017/000000.jpg', root / 'val2017/000000.jpg')
    small = reencode(root / 'train2017/000001.jpg', 0.75, 80)
    cv2.imwrite(str(root / 'val2017/000001.jpg'), small[..., ::-1])
    return root


def test_find_object_issues(faulty: Path, browse: Callable) -> None:
    classes = {f'{split}_dataloader.dataset.metainfo.classes': ('<b>', 'square', 'triangle')
               for split in ('train', 'val', 'test')}  # yapf: disable
    result = browse('mask_rcnn', faulty, cfg_options=classes)
    counts = count_issues(result)
    assert set(counts.pop('rare-class')) == {'train', 'val'}
    once = ('dataset-build', 'unreadable-file', 'tiny-box', 'box-beyond', 'whole-image-box',
            'long-box', 'mask-beyond-box', 'cross-polygon', 'double-box',
            'image-without-annotations')
    assert counts == {rule: {'train': 1} for rule in once} | {
        'other-size': {'train': 1, 'val': 1}, 'split-images': {'train and val': 2}}  # yapf: disable
    across = next(each for each in result.issues if each.rule == 'split-images')
    assert across.examples[0].message.endswith(': the same file')
    text = result.page.read_text()
    assert '<b>' not in text and '&lt;b&gt;' in text and 'KeyError: &#39;bbox&#39;' in text
    assert 'annotations without a box' in text and 'images that are not in the file' in text
    assert next(i.title
                for i in result.issues if i.rule == 'box-beyond') + ': train: 1' in str(result)


def test_find_label_map_issues(shapes: Path, tmp_path: Path, browse: Callable) -> None:
    root = Path(shutil.copytree(shapes / 'ade', tmp_path / 'ade'))
    images, maps = root / 'images/training', root / 'annotations/training'
    labels = np.ones((64, 64), np.uint8)
    labels[::6, ::6] = 2  # 121 islands
    cv2.imwrite(str(maps / '000000.png'), labels)
    cv2.imwrite(str(maps / '000001.png'), np.where(np.eye(64, dtype=bool), 1, 0).astype(np.uint8))
    cv2.imwrite(str(maps / '000002.png'), np.full((64, 64), 77, np.uint8))
    cv2.imwrite(str(images / '000003.jpg'), np.zeros((32, 64, 3), np.uint8))
    (maps / '000004.png').write_bytes(b'no image')
    cv2.imwrite(str(maps / '000005.png'), np.zeros((64, 64, 3), np.uint8))
    cv2.imencode('.png', np.full((64, 64), 900, np.uint16))[1].tofile(images / '000006.jpg')
    result = browse('sem_fpn', root)
    counts, text = count_issues(result), result.page.read_text()
    counts.pop('rare-label', None)
    assert '000004.png is not a readable image' in text
    assert '000005.png is not a label map: it has 3 channels' in text
    assert '000006.jpg' in text and 'below 4096' in text
    amounts = f'{result.statistics[0].amounts.sum():,} labeled pixels in 10 label maps'
    assert str(result).startswith(f'train: 12 images, {amounts}, 4 of 4 classes\n')
    assert counts == {
        rule: {'train': number} for rule, number in (('unreadable-file', 3), ('other-size', 1), (
            'unlabelled-map', 1), ('unknown-label', 1), ('islands', 1))}  # yapf: disable


@HEADS
def test_model_inputs_match_dataloader(shapes: Path, head: str, layout: str) -> None:
    cfg = read_cfg(head, shapes / layout)
    pipeline = InputPipeline.from_config(cfg, 'train')
    seeds = [derive_seed(3, 0, view) for view in range(3)]
    inputs = [pipeline.load(0, seed) for seed in seeds]
    dataset = build_dataset(cfg, get_dataset_settings(cfg, 'train'))
    loader = Runner.build_dataloader(
        dict(
            dataset=dataset,
            sampler=DefaultSampler(dataset, shuffle=False),
            batch_size=1,
            num_workers=0))
    for seed, model_input in zip(seeds, inputs, strict=True):
        batches = iter(loader)
        set_random_seed(seed)
        ready = pipeline.preprocessor(next(batches), True)
        assert torch.equal(ready['inputs'][0], model_input.inputs)
        means = ', '.join(f'{value:.2f}' for value in ready['inputs'][0].mean((1, 2)).tolist())
        assert model_input.describe_tensor()[3] == means
        expected, sample = ready['data_samples'][0], model_input.sample
        if layout == 'ade':
            assert torch.equal(expected.gt_sem_seg.data, sample.gt_sem_seg.data)
        else:
            assert torch.equal(expected.gt_instances.bboxes, sample.gt_instances.bboxes)
    assert any(not torch.equal(inputs[0].inputs, other.inputs) for other in inputs[1:])


def test_model_inputs_are_shown_in_original_colors(shapes: Path) -> None:
    cfg = read_cfg('mask_rcnn', shapes / 'coco')
    model_input = InputPipeline.from_config(cfg, 'val').load(0, 0)
    height, width = model_input.image_size
    image = cv2.imread(model_input.sample.img_path)[..., ::-1]
    expected = cv2.resize(image, (width, height)).astype(int)
    assert np.abs(model_input.pixels[:height, :width] - expected).mean() < 2
    sample = model_input.sample.clone()
    sample.set_metainfo(dict(img_shape=[side - 8 for side in model_input.pixels.shape[:2]]))
    padded = ModelInput(model_input.inputs, sample, model_input.pixels, model_input.bounds)
    drawing = np.asarray(padded.draw([(0, 0, 0)] * 3, 256))
    assert (drawing == (255, 0, 255)).all(axis=2).sum() > 100  # the edge of the padding


@HEADS
def test_validation_annotations_follow_resizing(shapes: Path, head: str, layout: str) -> None:
    """Annotations loaded after resizing and flipping equal those loaded before."""
    cfg = read_cfg(head, shapes / layout)
    steps = cfg.val_dataloader.dataset.pipeline
    load, = (step for step in steps if step.type == 'LoadAnnotations')
    resize = dict(type='Resize', scale=(100, 90), keep_ratio=False)
    change = [resize, dict(type='RandomFlip', prob=1., direction='diagonal')]
    steps[-1].pop('meta_keys', None)  # The default contains the flip.
    samples = []
    for middle in ([*change, load], [load, *change]):
        cfg.val_dataloader.dataset.pipeline = [steps[0], *middle, steps[-1]]
        pipeline = InputPipeline.from_config(cfg, 'val')
        samples.append(pipeline.load(1, 0).sample)
        assert pipeline.late == (load is middle[-1])
    late, early = samples
    if layout == 'ade':
        assert early.gt_sem_seg.shape == (90, 100)
        assert (late.gt_sem_seg.data == early.gt_sem_seg.data).float().mean() > 0.97
    else:
        assert torch.allclose(late.gt_instances.bboxes, early.gt_instances.bboxes, atol=1e-4)
        masks = [each.gt_instances.masks.to_ndarray() for each in samples]
        assert masks[0].shape[1:] == (90, 100) and (masks[0] == masks[1]).mean() > 0.97


def test_find_normalization_issues(shapes: Path) -> None:
    pipeline = InputPipeline.from_config(read_cfg('mask_rcnn', shapes / 'coco'), 'val')

    def find_issues(**changes: Any) -> str:
        settings = {**pipeline.settings, **changes}
        with DefaultScope.overwrite_default_scope('mmdet'):
            changed = replace(
                pipeline, settings=settings, preprocessor=MODELS.build(settings), inputs=[])
        changed.load(0, 0)
        return ' '.join(map(str, changed.find_issues()))

    zeros, ones = [0., 0., 0.], [1., 1., 1.]
    for correct in ({}, dict(std=ones), dict(mean=zeros, std=[255., 255., 255.])):
        assert find_issues(**correct) == ''
    for changes, message in (
        (dict(bgr_to_rgb=False), 'the opposite channel order'),
        (dict(mean=None, std=None), 'no mean and std'),
        (dict(mean=zeros, std=ones), 'no mean and std'),
        (dict(mean=[0.5, 0.5, 0.5], std=[0.2, 0.2, 0.2]), 'the mean is for values from 0 to 1'),
        (dict(mean=[1000., 1000., 1000.]), 'far from 0'),
    ):  # yapf: disable
        assert message in find_issues(**changes)


def test_read_wrapped_datasets(shapes: Path) -> None:
    """Images of repeated, concatenated and mixed datasets are read once."""
    cfg = read_cfg('mask_rcnn', shapes / 'coco')
    train = cfg.train_dataloader.dataset
    other = ConfigDict(cfg.val_dataloader.dataset, pipeline=train.pipeline, test_mode=False)
    steps = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', with_bbox=True)]
    inner = [ConfigDict(each, pipeline=steps) for each in (train, other)]
    joined = dict(type='ConcatDataset', datasets=inner)
    cfg.train_dataloader.dataset = ConfigDict(
        type='MultiImageMixDataset',
        dataset=dict(type='RepeatDataset', times=2, dataset=joined),
        pipeline=[
            dict(type='Mosaic', img_scale=(64, 64), pad_val=114.0),
            dict(type='PackDetInputs')
        ])
    data = read_set(cfg, 'train')
    assert data is not None and len(data) == 16 and len(data.objects) > 16
    assert [Path(path).parent.name for path in data.paths] == ['train2017'] * 12 + ['val2017'] * 4
    pipeline = InputPipeline.from_config(cfg, 'train')
    assert pipeline.find_indices([data.paths[13]]) == {data.paths[13]: 13}
    model_input = pipeline.load(13, 0)
    assert pipeline.mixes and model_input.sample.img_path == data.paths[13]
    assert model_input.image_size == (128, 128) and model_input.build_scene(3, 270).masks is None


def test_read_datasets_without_coco_file(shapes: Path) -> None:
    """Annotations of mmdet's dataset are those of the file."""
    options = {'train_dataloader.dataset.indices': 3}
    part = read_set(read_cfg('mask_rcnn', shapes / 'coco', **options), 'train')
    full = read_set(read_cfg('mask_rcnn', shapes / 'coco'), 'train')
    assert part is not None and full is not None and len(part) == 3
    number = len(part.objects)
    assert part.paths == full.paths[:3] and number == (full.objects.images < 3).sum()
    for column in ('images', 'labels', 'boxes', 'crowds'):
        expected = vars(full.objects)[column][:number]
        assert np.array_equal(vars(part.objects)[column], expected)
    assert part.objects.masks == full.objects.masks[:number]


def test_command_line(shapes: Path, tmp_path: Path, run_tool: Callable, no_plots: None,
                      capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / 'page.html'
    tool = ['browse_dataset', config('mask_rcnn'), '--data-root', shapes / 'coco', '--out', out]

    def fail(*arguments: object) -> str:
        with pytest.raises(SystemExit) as stopped:
            run_tool(*tool, *arguments)
        return str(stopped.value)

    assert fail('--class', 'cat').startswith("browse-dataset: the dataset has no class 'cat': ")
    assert not out.exists()
    data = read_set(read_cfg('mask_rcnn', shapes / 'coco'), 'train')
    for wrong in (dict(index=[12]), dict(image=['none.jpg'])):
        with pytest.raises(ValueError, match="^--index must be between|^train has no image 'none"):
            select_images(data, BrowseOptions(Path('a.py'), **wrong))
    run_tool(*tool, '--image', '000003', '000001.jpg', '--num-views', '1', '--split', 'val')
    text = out.read_text()
    assert text.index('3: 000003.jpg') < text.index('1: 000001.jpg')
    assert 'Images after the pipeline of this split' in text
    assert capsys.readouterr().out.endswith(f'written: {out}\n')
    assert 'page.html already exists: choose another --out' in fail()
    assert '--num must be at least 1, got 0' in fail('--num', '0')


def test_malformed_masks(shapes: Path, tmp_path: Path, browse: Callable) -> None:
    """Images are listed before pycocotools reads out of bounds or exhausts memory."""
    root = Path(shutil.copytree(shapes / 'coco', tmp_path / 'coco'))
    file = root / 'annotations/instances_train2017.json'
    content = json.loads(file.read_text())
    content['annotations'][0]['segmentation']['counts'] = 'P' * 9
    content['annotations'][-1]['segmentation'] = [[1, 1, 1e12, 5, 5, 1e12]]
    file.write_text(json.dumps(content))
    result = browse('mask_rcnn', root)
    text = result.page.read_text()
    assert text.count('the RLE') == text.count('polygons must be numbers of pixels within') == 2
    assert count_issues(result)['mask-beyond-box'] == {'train': 2}


def test_find_double_boxes_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    lefts = np.random.default_rng(0).integers(0, 4, 40).tolist()
    objects = Objects.from_rows([(i % 2, 0, (left, 0, left + 90, 90), 1., i > 37, i)
                                 for i, left in enumerate(lefts)], [None] * 40)
    expected = {(i, j)
                for i in range(38)
                for j in range(i + 1, 38) if (i - j) % 2 == 0 and abs(lefts[i] - lefts[j]) <= 4}
    for compared in (128, 7, 1):
        monkeypatch.setattr('colonnade.visualization.dataset_browser.object_issues.COMPARED',
                            compared)
        pairs = np.concatenate(list(find_box_pairs(objects)))
        assert {(objects.ids[int(i)], objects.ids[int(j)]) for i, j, _ in pairs} == expected
        assert len(pairs) == len(expected)


def test_class_names_with_trailing_spaces(shapes: Path) -> None:
    """mmseg's ADE20K has such a name."""
    data = read_set(read_cfg('sem_fpn', shapes / 'ade'), 'train')
    data.classes = ('wall', 'bed ', 'sky')
    assert find_label(data, 'bed') == find_label(data, 'bed ') == 1
    with pytest.raises(ValueError, match="no class 'wal': did you mean wall?"):
        find_label(data, 'wal')


def test_invalid_coco_files(shapes: Path, tmp_path: Path) -> None:
    file = tmp_path / 'a.json'
    cfg = read_cfg('mask_rcnn', shapes / 'coco', **{'train_dataloader.dataset.ann_file': str(file)})
    for content, message in (('[]', 'a.json is not a COCO file'), ('[', 'a.json is not valid JSON'),
                             ('{"images": [{"id": 1}], "categories": []}',
                              r"KeyError\('file_name'\)")):
        file.write_text(content)
        with pytest.raises(ValueError, match=message):
            read_set(cfg, 'train')
    cfg.train_dataloader.dataset.type = 'CocoDatset'
    with pytest.raises(ValueError, match='did you mean .*CocoDataset'):
        read_set(cfg, 'train')
