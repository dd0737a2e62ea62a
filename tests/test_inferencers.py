"""mmdet's and mmseg's own inference takes our configs, checkpoints and packages, and agrees."""
from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, config
from helpers.packages import CLASSES, some_image, write_checkpoint, write_package
from helpers.pages import Block, find_blocks
from mmdet.apis import DetInferencer, inference_detector, init_detector
from mmseg.apis import MMSegInferencer, inference_model, init_model
from PIL import Image

from colonnade.inference import Instances, LabelMap, load

PAGE = ROOT / 'docs/share.md'


@pytest.fixture(scope='module')
def sources(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[str, str]]:
    """Config and weights of a head, of a run or of a package."""
    folder = tmp_path_factory.mktemp('models')

    def of(head: str, form: str) -> tuple[str, str]:
        checkpoint, package = folder / f'{head}.pth', folder / head
        if not checkpoint.exists():
            write_package(head, write_checkpoint(head, checkpoint), package)
        if form == 'checkpoint':
            return str(config(head)), str(checkpoint)
        return str(package / 'config.py'), str(package / 'model.safetensors')

    return of


@pytest.fixture(autouse=True)
def no_guesses() -> None:
    """Tools that find no classes take those of COCO or Cityscapes, and say so in a warning."""
    warnings.filterwarnings('error', message='.*dataset_meta or class names.*')


def bgr() -> np.ndarray:
    """The image as OpenCV has it."""
    return np.ascontiguousarray(some_image()[..., ::-1])


def test_detectors(sources: Callable) -> None:
    """Of runs; those of packages are on the page, below."""
    leaf, weights = sources('mask_rcnn', 'checkpoint')
    expected = load(leaf, weights, device='cpu').predict(some_image())
    assert isinstance(expected, Instances) and len(expected) > 0
    inferencer = DetInferencer(leaf, weights, device='cpu', show_progress=False)
    assert tuple(inferencer.model.dataset_meta['classes']) == CLASSES['mask_rcnn']
    sample = inferencer(bgr(), return_datasamples=True, no_save_vis=True)['predictions'][0]
    model = init_detector(leaf, weights, device='cpu')
    assert tuple(model.dataset_meta['classes']) == CLASSES['mask_rcnn']
    for found in (sample.pred_instances, inference_detector(model, bgr()).pred_instances):
        assert (found.bboxes.numpy() == expected.boxes).all()
        assert (found.scores.numpy() == expected.scores).all()
        assert (found.labels.numpy() == expected.labels).all()
        assert (found.masks.numpy() == expected.decode_masks()).all()


@pytest.mark.parametrize('form', ['checkpoint', 'package'])
def test_segmenters(form: str, sources: Callable) -> None:
    leaf, weights = sources('sem_fpn', form)
    expected = load(leaf, weights, device='cpu').predict(some_image())
    assert isinstance(expected, LabelMap)
    inferencer = MMSegInferencer(leaf, weights, device='cpu', show_progress=False)
    assert tuple(inferencer.model.dataset_meta['classes']) == CLASSES['sem_fpn']
    assert (inferencer(bgr())['predictions'] == expected.labels).all()
    model = init_model(leaf, weights, device='cpu')
    assert tuple(model.dataset_meta['classes']) == CLASSES['sem_fpn']
    assert (inference_model(model, bgr()).pred_sem_seg.data[0].numpy() == expected.labels).all()


@pytest.mark.parametrize('block', find_blocks(PAGE, 'python'), ids=str)
def test_the_page(block: Block, sources: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                  capsys: pytest.CaptureFixture) -> None:
    """Its snippets, with packages of these names; the first is ours, and they agree."""
    monkeypatch.chdir(tmp_path)
    Image.fromarray(some_image()).save('image.jpg')
    for name, head in (('shapes_detector', 'mask_rcnn'), ('shapes_segmenter', 'sem_fpn')):
        Path(name).symlink_to(Path(sources(head, 'package')[0]).parent)
    names: dict[str, Any] = {}
    exec(compile(block.code, str(block), 'exec'), names)
    if 'colonnade' in names:
        assert Path('drawn.png').is_file()
    elif 'found' in names:
        expected = load('shapes_detector', device='cpu').predict('image.jpg')
        assert np.allclose(names['found']['bboxes'], expected.boxes)
        assert np.allclose(names['found']['scores'], expected.scores)
    else:
        assert 'torch.Size([1, 96, 128])' in capsys.readouterr().out
