"""Custom label maps: meaning of labels, file names, errors."""
from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from helpers.synthetic_data import (HEIGHT, WIDTH, assert_messages, draw_image, draw_label_maps,
                                    leaf, run_and_get_errors, train_and_test)
from mmengine.config import Config
from mmengine.registry import DefaultScope
from mmseg.datasets import BaseSegDataset

from colonnade.datasets.custom.label_maps import interpret_labels


@pytest.mark.parametrize('values, names, label_zero, classes, reduced', [
    ({0, 1, 2}, ['a', 'b'], None, ('a', 'b'), True),
    ({0, 1}, ['a', 'b'], None, ('a', 'b'), False),
    ({0, 1, 2}, ['a', 'b', 'c'], None, ('a', 'b', 'c'), False),
    ({1, 2}, None, None, ('label 1', 'label 2'), True),
    ({0, 2}, None, None, ('label 0', 'label 1', 'label 2'), False),
    ({0, 2}, None, 'ignore', ('label 1', 'label 2'), True),
    ({0, 1}, ['a'], None, ('background', 'a'), False),
    ({0, 1}, ['a', 'b'], 'ignore', ('a', 'b'), True),
])
def test_interpret_labels(values: set[int], names: list[str] | None, label_zero: str | None,
                          classes: tuple[str, ...], reduced: bool) -> None:
    assert interpret_labels(values, names, label_zero)[:2] == (classes, reduced)


@pytest.mark.parametrize('labels, options, says', [
    ((0, 1, 2), ['--classes', 'road', 'sky', 'tree'
                 ], "warning: label 0 is assumed to be 'road', label 1 'sky' and so on. If label 0 "
     'stands for unlabeled pixels, pass --label-zero ignore, and at least 2 names'),
    ((0, 1, 2), ['--classes', 'road', 'sky', 'tree', '--label-zero', 'class'], ''),
    ((0, 1, 3), ['--label-zero', 'ignore'], 'warning: no class names: 3 classes inferred '
     'from the highest label, 3; pass the names of all classes with --classes'),
    ((0, 1, 3), ['--label-zero', 'ignore'], '3 classes: label 1, label 2, label 3'),
    ((0, 1, 255), ['--classes', 'a', 'b', 'c', '--ignore-255'],
     'warning: training: no pixels of c'),
])  # yapf: disable
def test_warnings(labels: tuple[int, ...], options: list[str], says: str, tmp_path: Path,
                  run_tool: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = draw_label_maps(tmp_path, labels=labels)
    run_tool('create_config', leaf('sem_fpn'), *arguments, *options, '--out', tmp_path / 'own.py')
    printed = capsys.readouterr().out
    assert says in printed and bool(says) >= ('\nwarning: ' in printed)


@pytest.mark.parametrize('labels, options, says', [
    ((255, ), [], 'every pixel of every label map is 255, which mmseg ignores'),
    ((0, 255), [], 'pass one name with --classes if 0 is the background and 255 the class'),
    ((0, 255), ['--classes', 'a', '--label-zero', 'class'
                ], 'the only labels are 0 and 255, and mmseg'),
    ((1, 255), ['--classes', 'a', 'b'], 'if 255 is a class, save it as another label, such as 1'),
    ((0, 1, 2, 3), ['--classes', 'background', 'person', 'chair'], "if it is a class, such as "
     "'background', pass 4 names"),
    ((0, 1, 2), ['--classes', 'sky', 'road'], 'pass --label-zero ignore; if it is a class'),
    ((0, 1, 255), ['--classes', 'a', 'b', 'c'], 'training: no pixels of c, but pixels with label '
     '255'),
    ((0, 1, 255), ['--classes', 'a', 'b', 'c'], 'if they are unlabeled, pass --ignore-255'),
    ((0, 1, 4), ['--classes', 'a', 'b'], ' other label maps: no class has label 4: labels of '
     '2 classes start with 0'),
    ((0, 1, 2), ['--classes', 'a', 'b', '--label-zero', 'class'],
     'start with 0; if label 0 stands for unlabeled pixels, pass --label-zero ignore'),
    ((1, ), [], 'a segmenter needs at least two classes'),
])
def test_invalid_labels(labels: tuple[int, ...], options: list[str], says: str, tmp_path: Path,
                        run_tool: Callable) -> None:
    arguments = draw_label_maps(tmp_path, labels=labels)
    assert_messages(run_and_get_errors(run_tool, leaf('sem_fpn'), *arguments, *options), says)


def test_names_that_may_start_with_label_0(tmp_path: Path, run_tool: Callable,
                                           capsys: pytest.CaptureFixture[str]) -> None:
    arguments = draw_label_maps(tmp_path, labels=(0, 1, 2))
    run_tool('create_config', leaf('sem_fpn'), *arguments, '--classes', 'a', 'b', 'c',
             '--label-zero', 'ignore', '--out', tmp_path / 'own.py')
    assert "no pixels of c, which the model cannot learn: add images that show them, or pass " \
        "--label-zero class if label 0 is 'a'" in capsys.readouterr().out


@pytest.mark.parametrize('labels, names, classes', [
    ((0, 255), ['house'], ('background', 'house')),
    ((0, 255), ['ground', 'house'], ('ground', 'house')),
    ((0, 2), ['ground', 'house'], ('ground', 'house')),
    ((3, 200), ['house'], ('background', 'house')),
])
def test_two_values_become_background_and_class(labels: tuple[int, ...], names: list[str],
                                                classes: tuple[str, ...], tmp_path: Path,
                                                run_tool: Callable,
                                                capsys: pytest.CaptureFixture[str]) -> None:
    arguments = draw_label_maps(tmp_path, labels=labels)
    original = (tmp_path / 'masks/train/a.png').read_bytes()
    out = tmp_path / 'own.py'
    run_tool('create_config', leaf('sem_fpn'), *arguments, '--classes', *names, '--out', out)
    assert f'warning: label maps contain {labels[0]} and {labels[1]}: {labels[0]} becomes label ' \
        f'0, {classes[0]!r}, and {labels[1]} label 1, {classes[1]!r}' in capsys.readouterr().out
    cfg = Config.fromfile(out)
    dataset = cfg.train_dataloader.dataset
    assert dataset.metainfo.classes == classes and not dataset.reduce_zero_label
    written = cv2.imread(str(tmp_path / 'own_data/masks/train/a.jpg.png'), cv2.IMREAD_UNCHANGED)
    np.testing.assert_array_equal(written, np.resize(np.array([0, 1], np.uint8), (HEIGHT, WIDTH)))
    assert (tmp_path / 'masks/train/a.png').read_bytes() == original


def test_bad_label_maps_are_skipped(tmp_path: Path, run_tool: Callable,
                                    capsys: pytest.CaptureFixture[str]) -> None:
    """Only lists are written; the other label maps stay in place."""
    arguments = draw_label_maps(tmp_path, num_images=6)
    images = sorted((tmp_path / 'images/train').iterdir())
    masks = sorted((tmp_path / 'masks/train').iterdir())
    masks[0].unlink()
    images[1].write_bytes(b'no JPEG')
    cv2.imwrite(str(masks[2]), np.zeros((5, 6), np.uint8))
    masks[3].write_bytes(b'no PNG')
    out = tmp_path / 'own.py'
    with pytest.raises(SystemExit, match='4 errors, .*; --on-bad-data skip leaves out bad images'):
        run_tool('create_config', leaf('sem_fpn'), *arguments, '--out', out)
    run_tool('create_config', leaf('sem_fpn'), *arguments, '--out', out, '--on-bad-data', 'skip')
    assert (tmp_path / 'own_data/train.txt').read_text().split() == ['e', 'f']
    assert not (tmp_path / 'own_data/masks').exists()
    printed = capsys.readouterr().out
    assert '2 training and 6 validation images' in printed
    assert f'skip: 1 sample skipped, the first: {images[0]} has no label map' in printed
    for mask in masks[4:]:
        mask.unlink()
    with pytest.raises(SystemExit, match='1 error, no config was written$'):
        run_tool('create_config', leaf('sem_fpn'), *arguments, '--out', tmp_path / 'none.py',
                 '--on-bad-data', 'skip')
    assert f'error: {tmp_path}/images/train: no usable image is left' in capsys.readouterr().err
    assert f'skip: 3 samples skipped, the first: {images[1]} cannot be read' in printed
    dataset = Config.fromfile(out).train_dataloader.dataset
    assert dataset.ann_file == 'own_data/train.txt'


@pytest.mark.parametrize('extensions', [('.jpg', '.png', '.JPG', '.jpeg', '.jpg', '.jpg'),
                                        ('.JPG', ) * 5 + ('.jpg', )])
def test_mixed_extensions(extensions: tuple[str, ...], tmp_path: Path, run_tool: Callable) -> None:
    arguments = draw_label_maps(tmp_path, num_images=6)
    for image, extension in zip(
            sorted((tmp_path / 'images/train').iterdir()), extensions, strict=True):
        renamed = image.with_suffix(extension)
        cv2.imwrite(str(renamed), cv2.imread(str(image)))
        if renamed != image:
            image.unlink()
    out = tmp_path / 'own.py'
    run_tool('create_config', leaf('sem_fpn'), *arguments, '--out', out)
    names = (tmp_path / 'own_data/train.txt').read_text().split()
    assert names == [f'{stem}{end}' for stem, end in zip('abcdef', extensions, strict=True)]
    assert_equal_label_maps(tmp_path, out, '{}.png')


def assert_equal_label_maps(folder: Path, config: Path, mask_name: str) -> None:
    """Check that mmseg loads the label maps in the folder with a config."""
    settings = Config.fromfile(config).train_dataloader.dataset
    with DefaultScope.overwrite_default_scope('mmseg'):
        settings = {key: settings[key] for key in settings if key not in ('type', 'pipeline')}
        dataset = BaseSegDataset(**settings, pipeline=[])
    assert len(dataset) > 1
    for index in range(len(dataset)):
        info = dataset.get_data_info(index)
        assert Path(info['img_path']).is_file()
        stem = Path(info['img_path']).stem.removeprefix('img_')
        original = folder / 'masks/train' / mask_name.format(stem)
        np.testing.assert_array_equal(
            cv2.imread(info['seg_map_path'], cv2.IMREAD_UNCHANGED),
            cv2.imread(str(original), cv2.IMREAD_UNCHANGED))


def test_errors_of_label_maps(tmp_path: Path, run_tool: Callable) -> None:
    arguments = draw_label_maps(tmp_path, num_images=6)
    images = sorted((tmp_path / 'images/train').iterdir())
    masks = sorted((tmp_path / 'masks/train').iterdir())
    masks[0].unlink()
    images[1].unlink()
    images[2].write_bytes(b'no JPEG')
    cv2.imwrite(str(masks[3]), np.zeros((5, 6), np.uint8))
    cv2.imwrite(str(masks[4]), np.full((HEIGHT, WIDTH), 255, np.uint8))
    shutil.copy(images[5], images[5].with_suffix('.jpeg'))
    said = run_and_get_errors(run_tool, leaf('sem_fpn'), *arguments)
    assert_messages(
        said, f'{images[0]} has no label map {masks[0]}', f'{masks[1]} is not used',
        f'{images[2]} cannot be read',
        f'{masks[3]} cannot be used: the label map has 6 x 5 pixels, but the image has {WIDTH} '
        f'x {HEIGHT}', f'{masks[4]}: every pixel is 255',
        'all files must have the same extension, got 5 .jpg, 1 .jpeg')


@pytest.mark.parametrize('image_name, mask_name, suffixes', [
    ('{}.jpg', '{}_gt.png', ('.jpg', '_gt.png')),
    ('{}_leftImg8bit.jpg', '{}_gtFine_labelTrainIds.png',
     ('leftImg8bit.jpg', 'gtFine_labelTrainIds.png')),
    ('set/{}.jpg', 'set/{}-mask.png', ('.jpg', '-mask.png')),
])
def test_suffixes_are_inferred(image_name: str, mask_name: str, suffixes: tuple[str, str],
                               tmp_path: Path, run_tool: Callable,
                               capsys: pytest.CaptureFixture[str]) -> None:
    for split in ('train', 'val'):
        (tmp_path / 'masks' / split / mask_name).parent.mkdir(parents=True)
        for stem in 'abc':
            draw_image(tmp_path / 'images' / split / image_name.format(stem))
            label_map = np.tile(np.uint8([[0, 1]]), (HEIGHT, WIDTH // 2))
            cv2.imwrite(str(tmp_path / 'masks' / split / mask_name.format(stem)), label_map)
    out = tmp_path / 'own.py'
    run_tool('create_config', leaf('sem_fpn'), '--masks', tmp_path / 'masks/train',
             tmp_path / 'masks/val', '--images', tmp_path / 'images/train', tmp_path / 'images/val',
             '--out', out)
    assert f'warning: image names end in {suffixes[0]}, and those of their label maps in ' \
        f'{suffixes[1]}' in capsys.readouterr().out
    dataset = Config.fromfile(out).train_dataloader.dataset
    assert (dataset.img_suffix, dataset.seg_map_suffix) == suffixes


@pytest.mark.slow
def test_train_with_inferred_suffixes(tmp_path: Path, run_tool: Callable) -> None:
    arguments = draw_label_maps(tmp_path, mask_name='{}_gt.png', num_images=3)
    run_tool('create_config', leaf('sem_fpn'), *arguments, '--out', tmp_path / 'own.py')
    assert 0 <= train_and_test(run_tool, tmp_path / 'own.py')['mIoU'] <= 100


def test_missing_label_map(tmp_path: Path, run_tool: Callable) -> None:
    arguments = draw_label_maps(tmp_path, mask_name='{}_gt.png', num_images=4)
    (tmp_path / 'masks/train/a_gt.png').unlink()
    said = run_and_get_errors(run_tool, leaf('sem_fpn'), *arguments)
    assert_messages(said, 'images/train/a.jpg has no label map')
    assert len([line for line in said if line.startswith('error')]) == 1


def test_several_label_maps_per_image(tmp_path: Path, run_tool: Callable) -> None:
    """Cityscapes has several label maps per image."""
    arguments = draw_label_maps(tmp_path, mask_name='{}_ids.png', num_images=3)
    for mask in [*(tmp_path / 'masks').rglob('*.png')]:
        shutil.copy(mask, mask.with_name(mask.name.replace('ids', 'color')))
    said = run_and_get_errors(run_tool, leaf('sem_fpn'), *arguments)
    assert_messages(said, 'images have several label maps each: pass --suffixes .jpg _')
    assert_messages(said, '--suffixes .jpg _ids.png', '--suffixes .jpg _color.png')


@pytest.mark.parametrize('image_name, mask_name', [
    ('{}.jpg', 'mask-of-{}.png'),
    ('img_{}.jpg', 'mask_{}.png'),
    ('{}.jpg', 'gt_{}_v2.png'),
])
def test_label_maps_with_other_prefix_are_copied(image_name: str, mask_name: str, tmp_path: Path,
                                                 run_tool: Callable,
                                                 capsys: pytest.CaptureFixture[str]) -> None:
    """mmseg can only pair files by suffixes."""
    arguments = draw_label_maps(tmp_path, mask_name=mask_name, image_name=image_name, num_images=3)
    run_tool('create_config', leaf('sem_fpn'), *arguments, '--out', tmp_path / 'own.py')
    assert 'label maps are matched by the common part of their names, e.g. ' \
        f'{mask_name.format("a")} for {image_name.format("a")}' in capsys.readouterr().out
    assert_equal_label_maps(tmp_path, tmp_path / 'own.py', mask_name)


def test_swapped_images_and_label_maps(tmp_path: Path, run_tool: Callable) -> None:
    """There is one error, not two per image."""
    arguments = draw_label_maps(tmp_path, num_images=6)
    swap = {'--masks': '--images', '--images': '--masks'}
    said = run_and_get_errors(run_tool, leaf('sem_fpn'), *[swap.get(a, a) for a in arguments])
    assert len(said) == 1
    assert_messages(
        said, f'{tmp_path / "images/train"} has only JPEGs, which cannot be label maps, '
        f'and {tmp_path / "masks/train"} has none: --images and --masks look swapped')


def test_unrelated_names(tmp_path: Path, run_tool: Callable) -> None:
    """There is one error, not one per image."""
    arguments = draw_label_maps(tmp_path, num_images=6)
    for folder in (tmp_path / 'masks').iterdir():
        for number, mask in enumerate(sorted(folder.iterdir())):
            mask.rename(folder / f'{number}.png')
    said = run_and_get_errors(run_tool, leaf('sem_fpn'), *arguments)
    assert len(said) == 1
    assert_messages(
        said, 'none of 12 images', 'images are named a.jpg, b.jpg, c.jpg and 3 more; label '
        'maps 0.png, 1.png, 2.png and 3 more', 'Pass the suffixes of their names with --suffixes')


def test_images_and_label_maps_in_same_folder(tmp_path: Path, run_tool: Callable) -> None:
    draw_label_maps(tmp_path, mask_name='{}_labels.png')
    for split in ('train', 'val'):
        for mask in (tmp_path / 'masks' / split).iterdir():
            mask.rename(tmp_path / 'images' / split / mask.name)
    folders = [tmp_path / 'images/train', tmp_path / 'images/val']
    arguments = ['--masks', *folders, '--images', *folders]
    said = run_and_get_errors(run_tool, leaf('sem_fpn'), *arguments)
    assert_messages(said, 'contains both images and label maps: pass the suffixes')
    said = run_and_get_errors(run_tool, leaf('sem_fpn'), *arguments, '--suffixes', '.png',
                              '_labels.png')
    assert_messages(said, 'mmseg would mistake label maps *_labels.png for images *.png')
    run_tool('create_config', leaf('sem_fpn'), *arguments, '--suffixes', '.jpg', '_labels.png',
             '--out', tmp_path / 'own.py')
    dataset = Config.fromfile(tmp_path / 'own.py').train_dataloader.dataset
    assert (dataset.img_suffix, dataset.seg_map_suffix) == ('.jpg', '_labels.png')


def test_images_without_suffix_cause_warning(tmp_path: Path, run_tool: Callable,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    arguments = draw_label_maps(tmp_path)
    shutil.copy(tmp_path / 'images/train/a.jpg', tmp_path / 'images/train/a.jpeg')
    run_tool('create_config', leaf('sem_fpn'), *arguments, '--suffixes', '.jpg', '.png', '--out',
             tmp_path / 'own.py')
    assert f'warning: {tmp_path / "images/train"}: not used: 1 file without the suffix ' \
        '.jpg: a.jpeg' in capsys.readouterr().out


def test_images_in_training_and_validation(tmp_path: Path, run_tool: Callable,
                                           capsys: pytest.CaptureFixture[str]) -> None:
    draw_label_maps(tmp_path, num_images=5)
    (tmp_path / 'link').symlink_to(tmp_path / 'images/train')
    run_tool('create_config', leaf('sem_fpn'), '--masks', *[tmp_path / 'masks/train'] * 2,
             '--images', tmp_path / 'images/train', tmp_path / 'link', '--out', tmp_path / 'own.py')
    first = tmp_path / 'images/train/a.jpg'
    assert re.search(
        f'warning: 5 images are in training and validation: {re.escape(str(first))}, '
        r'\S+, \S+ and 2 more; metrics will mean nothing: keep only one of the two splits',
        capsys.readouterr().out)


def test_empty_folders_and_circular_links(tmp_path: Path, run_tool: Callable) -> None:
    arguments = draw_label_maps(tmp_path)
    (tmp_path / 'images/train/again').symlink_to(tmp_path / 'images')
    assert_messages(
        run_and_get_errors(run_tool, leaf('sem_fpn'), *arguments),
        'links to a folder that was already read')
    os.unlink(tmp_path / 'images/train/again')
    (tmp_path / 'empty').mkdir()
    said = run_and_get_errors(run_tool, leaf('sem_fpn'), *arguments[:3], '--images',
                              tmp_path / 'empty', tmp_path / 'empty')
    assert_messages(said, f'{tmp_path / "empty"} has no images')
    file = tmp_path / 'masks/train/a.png'
    said = run_and_get_errors(run_tool, leaf('sem_fpn'), *arguments[:3], '--images', file, file)
    assert_messages(said, f'{file} is a file')
