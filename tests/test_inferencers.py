"""Inference of mmdet and mmseg with Colonnade's configs, checkpoints and packages."""
from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, config
from helpers.packages import CLASSES, draw_patches, write_package
from helpers.pages import Block, find_blocks
from mmdet.apis import DetInferencer, inference_detector, init_detector
from mmseg.apis import MMSegInferencer, inference_model, init_model
from PIL import Image

from colonnade.inference import Instances, LabelMap, load

PAGE = ROOT / 'docs/guides/share.md'


@pytest.fixture(scope='module')
def sources(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[str, str]]:
    """Return config and weights of a head, from a run or a package."""
    folder = tmp_path_factory.mktemp('models')

    def get_sources(head: str, form: str) -> tuple[str, str]:
        checkpoint, package = folder / f'{head}.pth', folder / head
        if not checkpoint.exists():
            write_package(head, package)
        if form == 'checkpoint':
            return str(config(head)), str(checkpoint)
        return str(package / 'config.py'), str(package / 'model.safetensors')

    return get_sources


@pytest.fixture(autouse=True)
def forbid_default_classes() -> None:
    """Raise the warning that classes are missing, and those of COCO or Cityscapes are used."""
    warnings.filterwarnings('error', message='.*dataset_meta or class names.*')


def draw_bgr_patches() -> np.ndarray:
    return np.ascontiguousarray(draw_patches()[..., ::-1])


@pytest.mark.slow
def test_detectors(sources: Callable) -> None:
    leaf, weights = sources('mask_rcnn', 'checkpoint')
    expected = load(leaf, weights, device='cpu').predict(draw_patches())
    assert isinstance(expected, Instances) and len(expected) > 0
    inferencer = DetInferencer(leaf, weights, device='cpu', show_progress=False)
    assert tuple(inferencer.model.dataset_meta['classes']) == CLASSES['mask_rcnn']
    sample = inferencer(
        draw_bgr_patches(), return_datasamples=True, no_save_vis=True)['predictions'][0]
    model = init_detector(leaf, weights, device='cpu')
    assert tuple(model.dataset_meta['classes']) == CLASSES['mask_rcnn']
    for instances in (sample.pred_instances, inference_detector(model,
                                                                draw_bgr_patches()).pred_instances):
        assert (instances.bboxes.numpy() == expected.boxes).all()
        assert (instances.scores.numpy() == expected.scores).all()
        assert (instances.labels.numpy() == expected.labels).all()
        assert (instances.masks.numpy() == expected.decode_masks()).all()


@pytest.mark.parametrize('form', ['checkpoint', 'package'])
def test_segmenters(form: str, sources: Callable) -> None:
    leaf, weights = sources('sem_fpn', form)
    expected = load(leaf, weights, device='cpu').predict(draw_patches())
    assert isinstance(expected, LabelMap)
    inferencer = MMSegInferencer(leaf, weights, device='cpu', show_progress=False)
    assert tuple(inferencer.model.dataset_meta['classes']) == CLASSES['sem_fpn']
    assert (inferencer(draw_bgr_patches())['predictions'] == expected.labels).all()
    model = init_model(leaf, weights, device='cpu')
    assert tuple(model.dataset_meta['classes']) == CLASSES['sem_fpn']
    assert (inference_model(
        model, draw_bgr_patches()).pred_sem_seg.data[0].numpy() == expected.labels).all()


@pytest.mark.parametrize('block', find_blocks(PAGE, 'python'), ids=str)
def test_the_page(block: Block, sources: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                  capsys: pytest.CaptureFixture) -> None:
    """Run the snippets of the page; the first is Colonnade's, and their results are equal."""
    monkeypatch.chdir(tmp_path)
    Image.fromarray(draw_patches()).save('image.jpg')
    for name, head in (('shapes_detector', 'mask_rcnn'), ('shapes_segmenter', 'sem_fpn')):
        Path(name).symlink_to(Path(sources(head, 'package')[0]).parent)
    names: dict[str, Any] = {}
    exec(compile(block.code, str(block), 'exec'), names)
    if 'colonnade' in names:
        assert Path('drawn.png').is_file()
    elif 'predictions' in names:
        expected = load('shapes_detector', device='cpu').predict('image.jpg')
        assert np.allclose(names['predictions']['bboxes'], expected.boxes)
        assert np.allclose(names['predictions']['scores'], expected.scores)
    else:
        assert 'torch.Size([1, 96, 128])' in capsys.readouterr().out
