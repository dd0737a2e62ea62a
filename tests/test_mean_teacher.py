"""Training on unlabeled images: which labels a teacher predicts, and whole runs."""
from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import NO_WORKERS
from helpers.synthetic_data import HEIGHT, WIDTH, draw_image, draw_instances, draw_label_maps, leaf
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmengine.structures import InstanceData, PixelData
from mmseg.structures import SegDataSample

from colonnade.engine.mean_teacher import (IGNORED, UnlabeledImages, change_image, has_labels,
                                           set_labels, to_probabilities)

SHORT = [
    '--cfg-options', 'train_cfg.max_iters=4', 'default_hooks.checkpoint.interval=2',
    'train_dataloader.batch_size=2', 'val_dataloader=None', 'val_evaluator=None', 'val_cfg=None',
    *NO_WORKERS[:1]
]


@pytest.fixture
def unlabeled(tmp_path: Path) -> Path:
    for name in ('a.jpg', 'more/b.png', 'more/c.jpg'):
        draw_image(tmp_path / 'unlabeled' / name)
    (tmp_path / 'unlabeled/notes.txt').write_text('no image')
    return tmp_path / 'unlabeled'


def test_lists_images(unlabeled: Path) -> None:
    paths = [each['img_path'] for each in UnlabeledImages(str(unlabeled))]
    assert [Path(path).name for path in paths] == ['a.jpg', 'b.png', 'c.jpg']
    assert len(UnlabeledImages(str(unlabeled), suffix='b.png')) == 1
    with pytest.raises(FileNotFoundError, match='no such folder, or it has no images'):
        UnlabeledImages(str(unlabeled / 'missing'))


def test_keeps_confident_pixels() -> None:
    logits = torch.tensor([[[5., 0.1]], [[-5., 0.]]])  # classes, rows, columns
    sample = SegDataSample(metainfo=dict(img_shape=(1, 2)))
    sample.seg_logits = PixelData(data=logits)
    sample.pred_sem_seg = PixelData(data=logits.argmax(0, keepdim=True))
    labeled = set_labels(sample, 0.7)
    assert labeled.gt_sem_seg.data.tolist() == [[[0, IGNORED]]]
    assert has_labels(labeled)
    assert not has_labels(set_labels(sample, 1.1))
    assert 'pred_sem_seg' not in labeled
    sample.seg_logits = PixelData(data=logits[:1])
    with pytest.raises(ValueError, match='does not support out_channels=1'):
        set_labels(sample, 0.7)
    scores = torch.tensor([[[3., 0.2]], [[1., 0.2]]])  # sums of queries
    torch.testing.assert_close(
        to_probabilities(scores), torch.tensor([[[0.75, 0.2]], [[0.25, 0.2]]]))


def test_keeps_confident_objects() -> None:
    sample = DetDataSample(metainfo=dict(img_shape=(6, 8)))
    sample.pred_instances = InstanceData(
        bboxes=torch.tensor([[0., 0, 4, 4], [1, 1, 2, 2]]),
        scores=torch.tensor([0.9, 0.5]),
        labels=torch.tensor([1, 0]),
        masks=torch.ones(2, 6, 8, dtype=torch.bool))
    labeled = set_labels(sample, 0.7)
    assert labeled.gt_instances.labels.tolist() == [1]
    assert labeled.gt_instances.masks.masks.shape == (1, 6, 8)
    assert len(labeled.ignored_instances) == 0
    assert not has_labels(set_labels(sample, 0.95))


def test_changes_images() -> None:
    torch.manual_seed(0)
    image = torch.randint(256, (3, HEIGHT, WIDTH), dtype=torch.uint8)
    changed = change_image(image)
    assert changed.dtype == torch.uint8 and changed.shape == image.shape
    assert (changed != image).any()
    bands = torch.randn(5, HEIGHT, WIDTH)
    hidden = change_image(bands) != bands
    assert 0 < hidden.float().mean() < 0.1


@pytest.mark.slow
@pytest.mark.parametrize('head', ['sem_fpn', 'mask_rcnn'])
def test_trains_and_resumes(head: str, unlabeled: Path, tmp_path: Path, run_tool: Callable,
                            capsys: pytest.CaptureFixture[str]) -> None:
    """Batches grow by the unlabeled images, and a resumed run is equal to the bit."""
    if head == 'sem_fpn':
        data = [*draw_label_maps(tmp_path), '--classes', 'a', 'b', '--label-zero', 'class']
    else:
        data = draw_instances(tmp_path)
    config = tmp_path / 'own.py'
    run_tool('create_config', leaf(head), *data, '--unlabeled', unlabeled, '--batch-size', 2,
             '--out', config)  # yapf: disable
    assert '3 unlabeled images are learned' in capsys.readouterr().out
    text = config.read_text()
    assert "type='EMAHook'" in text
    text = text.replace("type='PseudoLabelHook',",
                        "type='PseudoLabelHook', start=0.25, min_score=0.,")
    text = text.replace('persistent_workers=True', 'persistent_workers=False')
    config.write_text(re.sub(r'num_workers=\d+', 'num_workers=0', text))
    whole, resumed = tmp_path / 'whole', tmp_path / 'resumed'
    run_tool('train', config, '--work-dir', whole, *SHORT)
    history = torch.load(whole / 'iter_4.pth', weights_only=False)['message_hub']['log_scalars']
    assert history['train/unlabeled_images'].data[0].tolist() == [2, 2, 2]
    resumed.mkdir()
    (whole / 'iter_2.pth').rename(resumed / 'iter_2.pth')
    (resumed / 'last_checkpoint').write_text(str(resumed / 'iter_2.pth'))
    run_tool('train', config, '--work-dir', resumed, '--resume', *SHORT)
    states = [torch.load(folder / 'iter_4.pth', weights_only=False)
              for folder in (whole, resumed)]  # yapf: disable
    for key in ('state_dict', 'ema_state_dict'):
        assert all(torch.equal(states[0][key][name], states[1][key][name])
                   for name in states[0][key])  # yapf: disable


def test_wrong_settings(unlabeled: Path, tmp_path: Path, run_tool: Callable) -> None:
    data = [leaf('sem_fpn'), *draw_label_maps(tmp_path), '--classes', 'a', 'b', '--label-zero',
            'class', '--out', tmp_path / 'own.py']  # yapf: disable
    with pytest.raises(SystemExit, match='no such folder: --unlabeled .*missing'):
        run_tool('create_config', *data, '--unlabeled', tmp_path / 'missing')
    (unlabeled / 'broken.png').write_bytes(b'no image')
    with pytest.raises(SystemExit, match='--unlabeled: 1 images cannot be used: .*broken.png'):
        run_tool('create_config', *data, '--unlabeled', unlabeled)
    (unlabeled / 'broken.png').unlink()
    run_tool('create_config', *data, '--unlabeled', unlabeled)
    cfg = Config.fromfile(tmp_path / 'own.py')
    cfg.custom_hooks = [each for each in cfg.custom_hooks if each.type == 'PseudoLabelHook']
    cfg.dump(tmp_path / 'no_ema.py')
    with pytest.raises(SystemExit, match='PseudoLabelHook requires an EMAHook'):
        run_tool('train', tmp_path / 'no_ema.py', '--work-dir', tmp_path / 'run', *SHORT)
