"""The page of a config's data: what it shows, counts and suspects."""
from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import cv2
import mmdet.datasets  # noqa: F401, what configs import anyway
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
from torch import Tensor

from colonnade.settings.reading import LaunchOptions, load_config
from colonnade.visualization.dataset_browser import BrowseResult, browse
from colonnade.visualization.dataset_browser.dataset_plots import plot_classes
from colonnade.visualization.dataset_browser.dataset_reader import (build_dataset, find_label,
                                                                    get_dataset_settings, read_set,
                                                                    select_images)
from colonnade.visualization.dataset_browser.duplicates import (compute_hash, find_similar_pairs,
                                                                hash_images, shrink_to_gray)
from colonnade.visualization.dataset_browser.model_inputs import InputPipeline, ModelInput
from colonnade.visualization.dataset_browser.object_issues import find_box_pairs
from colonnade.visualization.dataset_browser.objects import Objects
from colonnade.visualization.dataset_browser.sections import derive_seed, describe_tensor

COCO_LEAF = ROOT / 'configs/mask_rcnn/xcit_nano_12_p16_slim_coco.py'
ADE_LEAF = ROOT / 'configs/sem_fpn/xcit_nano_12_p16_slim_ade20k.py'


def counts_of(found: BrowseResult) -> dict[str, dict[str, int]]:
    """How many there are of each kind that was found, in each split."""
    return {
        each.title: {
            name: number
            for name, number in each.counts.items() if number
        }
        for each in found.issues if each.count
    }


def read_config_of(head: str, root: Path, **options: Any) -> Any:
    return load_config(LaunchOptions(config(head), data_root=root, cfg_options=options or None))


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without plots, most of the time of a small page; those of real data have them."""
    for name in ('plot_objects', 'plot_labels'):
        monkeypatch.setattr(f'colonnade.visualization.dataset_browser.dataset_plots.{name}',
                            lambda splits: [])


def test_real_instances(real_data: dict[str, Path], tmp_path: Path) -> None:
    """Counts are pycocotools' own, and no two images are taken for one."""
    found = browse(
        COCO_LEAF, out=tmp_path / 'page.html', index=(3, 4), draws=1, data_root=real_data['coco'])
    for numbers, split in zip(found.statistics, ('train', 'val'), strict=True):
        file = COCO(real_data['coco'] / f'annotations/instances_{split}2017.json')
        assert numbers.num_images == len(file.imgs)
        objects = file.loadAnns(file.getAnnIds(iscrowd=False))
        names = [file.cats[each['category_id']]['name'] for each in objects]
        assert numbers.amounts.tolist() == [names.count(name) for name in numbers.classes]
        has = [{
            file.cats[each['category_id']]['name']
            for each in objects if each['image_id'] == i
        } for i in file.imgs]
        assert numbers.images.tolist() == [sum(n in h for h in has) for n in numbers.classes]
        person, chair = (numbers.classes.index(name) for name in ('person', 'chair'))
        assert numbers.together[person, chair] == sum({'person', 'chair'} <= h for h in has)
        assert np.array_equal(numbers.together, numbers.together.T)
    assert counts_of(found)['Images without annotations'] == {'train': 3}
    assert not any('look like' in title or 'two splits' in title for title in counts_of(found))
    text = found.page.read_text()
    assert 'Bright: many boxes; 1 is as many as if they were evenly spread.' in text
    assert text.count('<figure') == 2 + 4 + 10 + 7  # two images, twice each, plots, suspected
    assert 'http' not in text.replace('http://www.w3.org', '')


def test_real_label_maps(real_data: dict[str, Path], tmp_path: Path) -> None:
    """Label 0 is unlabelled; every other pixel is counted once."""
    found = browse(ADE_LEAF, out=tmp_path / 'page.html', num=1, draws=1, data_root=real_data['ade'])
    folder = real_data['ade'] / 'annotations/training'
    maps = [np.asarray(Image.open(path)) for path in sorted(folder.glob('*.png'))]
    train = found.statistics[0]
    _, drawn = plot_classes(found.statistics, 'labelled pixels')
    assert drawn.legends and drawn.axes[0].get_legend() is None  # above the data
    counted = sum(np.bincount(labels.ravel(), minlength=151) for labels in maps)
    assert train.amounts.tolist() == counted[1:].tolist()
    assert np.allclose(train.unlabeled, [(m == 0).mean() for m in maps])
    assert set(counts_of(found)) == {
        'Label maps of 20 islands or more', 'Classes with fewer than 10 images'
    }


def reencoded(path: Path, factor: float, quality: int) -> np.ndarray:
    """An image at another size, as a JPEG gives it back."""
    with Image.open(path) as image:
        size = round(image.width * factor), round(image.height * factor)
        content = BytesIO()
        image.convert('RGB').resize(size).save(content, 'JPEG', quality=quality)
    return np.array(Image.open(content))


def test_duplicates_among_real_images(real_data: dict[str, Path], tmp_path: Path) -> None:
    """Each image that is saved anew at another size is found, and no other pair."""
    paths = sorted(path for folder in real_data.values() for path in folder.rglob('*.jpg'))
    assert len(paths) == 139
    for index, path in list(enumerate(paths))[::10]:
        Image.fromarray(reencoded(path, 0.6, 70)).save(tmp_path / f'{index}.bmp')
    copies = sorted(tmp_path.iterdir())
    both = hash_images([(0, i, str(path))
                        for i, path in enumerate(paths)] + [(1, int(path.stem), str(path))
                                                            for path in copies], lambda done: None)
    pairs = find_similar_pairs(both)
    assert len(pairs) == len(copies) == 14
    assert all(pair.first == (0, pair.second[1]) and not pair.same_file for pair in pairs)


def test_the_hash() -> None:
    """A bit for each pixel that is brighter than the one left of it, row by row."""
    gray = np.zeros((8, 9), np.uint8)
    gray[0, 1] = gray[7, 8] = 9
    assert compute_hash(gray) == 1 << 63 | 1
    ramp = np.tile(np.arange(90, dtype=np.uint8)[None, :, None], (16, 1, 3))
    assert compute_hash(shrink_to_gray(ramp)) == 2**64 - 1


@pytest.fixture
def faulty(shapes: Path, tmp_path: Path) -> Path:
    """Drawn shapes with one fault of each kind, and a class called ``<b>``."""
    root = Path(shutil.copytree(shapes / 'coco', tmp_path / 'coco'))
    file = root / 'annotations/instances_train2017.json'
    content = json.loads(file.read_text())
    images, annotations = content['images'], content['annotations']
    content['categories'][0]['name'] = '<b>'
    boxes = {1: [5, 5, 1, 20], 2: [50, 50, 30, 10], 3: [0, 0, 64, 64], 4: [1, 1, 60, 2]}
    polygons = {5: [[10, 10, 30, 30, 30, 10, 10, 30]], 6: [[40, 40, 60, 40, 60, 60, 40, 60]]}
    content['annotations'] = [each for each in annotations if each['image_id'] > 7]
    for number in (1, 2, 3, 4, 5, 6, 7, 7):
        content['annotations'].append(
            dict(
                id=1000 + len(content['annotations']),
                image_id=number,
                category_id=1,
                area=100,
                iscrowd=0,
                bbox=boxes.get(number, [10, 10, 20, 20]),
                segmentation=polygons.get(number, [])))
    content['annotations'] += [
        dict(id=5000, image_id=8, category_id=1, area=1, iscrowd=0),
        dict(id=5001, image_id=99, category_id=1, area=1, bbox=[1, 1, 2, 2])
    ]
    content['annotations'] = [a for a in content['annotations'] if a['image_id'] != 9]
    images[9]['width'] += 2
    (root / 'train2017' / images[10]['file_name']).write_bytes(b'no image')
    file.write_text(json.dumps(content))
    val = root / 'annotations/instances_val2017.json'
    val.write_text(val.read_text().replace('"disc"', '"<b>"'))
    shutil.copy(root / 'train2017/000000.jpg', root / 'val2017/000000.jpg')
    small = reencoded(root / 'train2017/000001.jpg', 0.75, 80)
    cv2.imwrite(str(root / 'val2017/000001.jpg'), small[..., ::-1])
    return root


CLASSES = {
    f'{split}_dataloader.dataset.metainfo.classes': ('<b>', 'square', 'triangle')
    for split in ('train', 'val', 'test')
}


def test_made_up_faults(faulty: Path, tmp_path: Path, no_plots: None) -> None:
    found = browse(
        config('mask_rcnn'),
        out=tmp_path / 'page.html',
        num=12,
        draws=1,
        data_root=faulty,
        cfg_options=CLASSES)
    counts = counts_of(found)
    few = counts.pop('Classes with fewer than 10 objects')
    assert set(few) == {'train', 'val'}
    assert counts == {
        'Data sets that cannot be built': {'train': 1},
        'Files that cannot be read': {'train': 1},
        'Images of another size than their annotations': {'train': 1, 'val': 1},
        'Images that two splits have': {'train and val': 2},
        'Boxes of one pixel or less': {'train': 1},
        'Boxes that reach out of their image': {'train': 1},
        'Boxes that cover their whole image': {'train': 1},
        'Boxes more than 20 times as long as wide': {'train': 1},
        'Masks that reach out of their box': {'train': 1},
        'Polygons that cross themselves': {'train': 1},
        'Two boxes of one class at nearly one place': {'train': 1},
        'Images without annotations': {'train': 1},
    }  # yapf: disable
    across = next(each for each in found.issues if each.title.endswith('two splits have'))
    assert [case.message.rpartition(': ')[2] for case in across.cases][0] == 'the same file'
    text = found.page.read_text()
    assert '<b>' not in text and '&lt;b&gt;' in text
    assert '000010.jpg is no image that can be read' in text
    assert 'KeyError: &#39;bbox&#39;' in text
    assert 'annotations without a box' in text and 'images that are not in the file' in text
    assert 'Boxes that reach out of their image: train: 1' in str(found)


def test_made_up_faults_of_label_maps(shapes: Path, tmp_path: Path, no_plots: None) -> None:
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
    found = browse(config('sem_fpn'), out=tmp_path / 'page.html', num=12, draws=1, data_root=root)
    counts, text = counts_of(found), found.page.read_text()
    counts.pop('Classes with fewer than 10 images', None)
    assert '000004.png is no image that can be read' in text
    assert '000005.png is no label map: it has 3 channels' in text
    assert 'values are of 16 bits, but below 4096' in text and 'or sees wrong values' in text
    amounts = f'{found.statistics[0].amounts.sum():,} labelled pixels in 10 label maps'
    assert str(found).startswith(f'train: 12 images, {amounts}, 4 of 4 classes\n')
    assert counts == {
        'Files that cannot be read': {'train': 3},
        'Images of another size than their annotations': {'train': 1},
        'Label maps of which more than 90% is unlabelled': {'train': 1},
        'Label maps with labels that no class has': {'train': 1},
        'Label maps of 20 islands or more': {'train': 1},
    }  # yapf: disable


@pytest.mark.parametrize('head,layout', [('mask_rcnn', 'coco'), ('sem_fpn', 'ade')])
def test_the_model_gets_what_is_shown(shapes: Path, head: str, layout: str) -> None:
    """Tensors and annotations are those of a dataloader with the same seed."""
    cfg = read_config_of(head, shapes / layout)
    pipeline = InputPipeline.from_config(cfg, 'train')
    seeds = [derive_seed(3, 0, draw) for draw in range(3)]
    fed = [pipeline.load(0, seed) for seed in seeds]
    dataset = build_dataset(cfg, get_dataset_settings(cfg, 'train'))
    loader = Runner.build_dataloader(
        dict(
            dataset=dataset,
            sampler=DefaultSampler(dataset, shuffle=False),
            batch_size=1,
            num_workers=0))
    for seed, shown in zip(seeds, fed, strict=True):
        batches = iter(loader)
        set_random_seed(seed)
        ready = pipeline.preprocessor(next(batches), True)
        assert torch.equal(ready['inputs'][0], shown.inputs)
        means = ', '.join(f'{value:.2f}' for value in ready['inputs'][0].mean((1, 2)).tolist())
        assert describe_tensor(shown)[3] == means
        expected, sample = ready['data_samples'][0], shown.sample
        if layout == 'ade':
            assert torch.equal(expected.gt_sem_seg.data, sample.gt_sem_seg.data)
        else:
            assert torch.equal(expected.gt_instances.bboxes, sample.gt_instances.bboxes)
    assert any(not torch.equal(fed[0].inputs, other.inputs) for other in fed[1:])


def test_pictures_are_the_images(shapes: Path) -> None:
    """Where the pipeline only resizes, mean and std are undone to the image's own colours."""
    cfg = read_config_of('mask_rcnn', shapes / 'coco')
    fed = InputPipeline.from_config(cfg, 'val').load(0, 0)
    height, width = fed.image_size
    image = cv2.imread(fed.sample.img_path)[..., ::-1]
    expected = cv2.resize(image, (width, height)).astype(int)
    assert np.abs(fed.pixels[:height, :width] - expected).mean() < 2


@pytest.mark.parametrize('head,layout', [('mask_rcnn', 'coco'), ('sem_fpn', 'ade')])
def test_annotations_of_validation(shapes: Path, head: str, layout: str) -> None:
    """Loaded behind resizing and flipping, they lie where those loaded before do."""
    cfg = read_config_of(head, shapes / layout)
    steps = cfg.val_dataloader.dataset.pipeline
    load, = (step for step in steps if step.type == 'LoadAnnotations')
    resize = dict(type='Resize', scale=(100, 90), keep_ratio=False)
    change = [resize, dict(type='RandomFlip', prob=1., direction='diagonal')]
    steps[-1].pop('meta_keys', None)  # the default has how an image was flipped
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


def test_suspected_inputs(shapes: Path) -> None:
    pipeline = InputPipeline.from_config(read_config_of('mask_rcnn', shapes / 'coco'), 'val')

    def suspected(**changes: Any) -> list[str]:
        settings = {**pipeline.settings, **changes}
        with DefaultScope.overwrite_default_scope('mmdet'):
            changed = replace(
                pipeline, settings=settings, preprocessor=MODELS.build(settings), inputs=[])
        changed.load(0, 0)
        return list(map(str, changed.find_issues()))

    assert suspected() == []
    assert suspected(std=[1., 1., 1.]) == []
    assert suspected(mean=[0., 0., 0.], std=[255., 255., 255.]) == []
    wrong, = suspected(bgr_to_rgb=False)
    assert 'the other order of channels' in wrong
    for same in (dict(mean=None, std=None), dict(mean=[0., 0., 0.], std=[1., 1., 1.])):
        wrong, = suspected(**same)
        assert 'no mean and std' in wrong
    wrong, = suspected(mean=[0.5, 0.5, 0.5], std=[0.2, 0.2, 0.2])
    assert 'the mean is for values from 0 to 1' in wrong
    wrong, = suspected(mean=[1000., 1000., 1000.])
    assert 'far from 0' in wrong


def test_wrapped_sets(shapes: Path, tmp_path: Path) -> None:
    """Files of repeated, joined and mixed sets count once, and their wrappers feed the model."""
    cfg = read_config_of('mask_rcnn', shapes / 'coco')
    train = cfg.train_dataloader.dataset
    other = ConfigDict(cfg.val_dataloader.dataset, pipeline=train.pipeline, test_mode=False)
    load = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', with_bbox=True)]
    inner = [ConfigDict(each, pipeline=load) for each in (train, other)]
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
    place = pipeline.find_indices([data.paths[13]])[data.paths[13]]
    fed = pipeline.load(place, 0)
    assert place == 13 and pipeline.mixes and fed.sample.img_path == data.paths[13]
    assert fed.image_size == (128, 128) and fed.build_scene(3, 270).masks is None


def test_other_forms_of_annotations(shapes: Path) -> None:
    """What is not read as COCO's file comes from mmdet's data set, and is the same."""
    options = {'train_dataloader.dataset.indices': 3}
    part = read_set(read_config_of('mask_rcnn', shapes / 'coco', **options), 'train')
    whole = read_set(read_config_of('mask_rcnn', shapes / 'coco'), 'train')
    assert part is not None and whole is not None and len(part) == 3
    of_part, of_whole = part.objects, whole.objects
    number = len(of_part)
    assert part.paths == whole.paths[:3] and number == (of_whole.images < 3).sum()
    for column in ('images', 'labels', 'boxes', 'crowds'):
        assert np.array_equal(getattr(of_part, column), getattr(of_whole, column)[:number])
    assert of_part.masks == of_whole.masks[:number]


def test_images_are_chosen(shapes: Path, tmp_path: Path, run_tool: Callable, no_plots: None,
                           capsys: pytest.CaptureFixture) -> None:
    """By their names, positions and classes; what does not exist is named."""
    out = tmp_path / 'page.html'
    tool = ['browse_dataset', config('mask_rcnn'), '--data-root', shapes / 'coco', '--out', out]
    with pytest.raises(SystemExit, match='^browse_dataset: --class cat: ') as stopped:
        run_tool(*tool, '--class', 'cat')
    assert '\n' not in str(stopped.value) and not out.exists()
    data = read_set(read_config_of('mask_rcnn', shapes / 'coco'), 'train')
    for wrong in (dict(indices=[12]), dict(names=['none.jpg'])):
        with pytest.raises(ValueError, match='^--index is from 0|^--image none.jpg: '):
            select_images(data, num=1, **wrong)
    run_tool(*tool, '--image', '000003', '000001.jpg', '--draws', '1', '--split', 'val')
    text = out.read_text()
    assert text.index('3: 000003.jpg') < text.index('1: 000001.jpg')
    assert 'The pipeline of this split' in text
    assert capsys.readouterr().out.endswith(f'written: {out}\n')
    with pytest.raises(SystemExit, match='page.html exists: name another --out'):
        run_tool(*tool)
    with pytest.raises(SystemExit, match='--num is at least 1, got 0'):
        run_tool(*tool, '--num', '0')


def test_malformed_masks(shapes: Path, tmp_path: Path, no_plots: None) -> None:
    """Before pycocotools reads on behind their end, or takes all memory, images are listed."""
    root = Path(shutil.copytree(shapes / 'coco', tmp_path / 'coco'))
    file = root / 'annotations/instances_train2017.json'
    content = json.loads(file.read_text())
    content['annotations'][0]['segmentation']['counts'] = 'P' * 9
    last = content['annotations'][-1]
    last['segmentation'] = [[1, 1, 1e12, 5, 5, 1e12]]
    file.write_text(json.dumps(content))
    found = browse(config('mask_rcnn'), out=tmp_path / 'a.html', num=12, draws=1, data_root=root)
    text = found.page.read_text()
    assert text.count('the RLE') == text.count('polygons must be numbers of pixels within') == 2
    assert counts_of(found)['Masks that reach out of their box'] == {'train': 2}


def test_many_boxes_at_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs are the same, however many boxes are compared at a time."""
    lefts = np.random.default_rng(0).integers(0, 4, 40).tolist()
    objects = Objects.from_rows([(i % 2, 0, (left, 0, left + 90, 90), 1., i > 37, i)
                                 for i, left in enumerate(lefts)], [None] * 40)
    found = {(i, j)
             for i in range(38)
             for j in range(i + 1, 38) if (i - j) % 2 == 0 and abs(lefts[i] - lefts[j]) <= 4}
    for compared in (128, 7, 1):
        monkeypatch.setattr('colonnade.visualization.dataset_browser.object_issues.COMPARED',
                            compared)
        pairs = np.concatenate(list(find_box_pairs(objects)))
        assert {(objects.ids[int(i)], objects.ids[int(j)]) for i, j, _ in pairs} == found
        assert len(pairs) == len(found)


def test_names_of_classes(shapes: Path) -> None:
    """mmseg's ADE20k has a class with a blank behind its name."""
    data = read_set(read_config_of('sem_fpn', shapes / 'ade'), 'train')
    data.classes = ('wall', 'bed ', 'sky')
    assert find_label(data, 'bed') == find_label(data, 'bed ') == 1
    with pytest.raises(ValueError, match='--class wal: .*; did you mean wall?'):
        find_label(data, 'wal')


def test_other_files(shapes: Path, tmp_path: Path) -> None:
    """A file that is not in COCO's form, and a type that is not known."""
    file = tmp_path / 'a.json'
    options = {'train_dataloader.dataset.ann_file': str(file)}
    file.write_text('[]')
    cfg = read_config_of('mask_rcnn', shapes / 'coco', **options)
    with pytest.raises(ValueError, match="a.json is not in COCO's form"):
        read_set(cfg, 'train')
    file.write_text('{"images": [{"id": 1}], "categories": []}')
    with pytest.raises(ValueError, match="'file_name' is missing"):
        read_set(cfg, 'train')
    cfg.train_dataloader.dataset.type = 'CocoDatset'
    with pytest.raises(ValueError, match='CocoDatset is not known; did you mean .*CocoDataset'):
        read_set(cfg, 'train')


def test_padding_is_seen(shapes: Path) -> None:
    cfg = read_config_of('mask_rcnn', shapes / 'coco')
    fed = InputPipeline.from_config(cfg, 'val').load(0, 0)
    assert isinstance(fed.inputs, Tensor)
    sample = fed.sample.clone()
    sample.set_metainfo(dict(img_shape=(fed.pixels.shape[0] - 8, fed.pixels.shape[1] - 8)))
    drawing = ModelInput(fed.inputs, sample, fed.pixels, fed.bounds).draw([(0, 0, 0)] * 3, 256)
    picture = np.asarray(drawing)
    assert (picture == (255, 0, 255)).all(axis=2).sum() > 100
