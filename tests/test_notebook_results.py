"""Results in notebooks: display, tables of pandas, detections of supervision; feature maps."""
from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.live_server import build_random_model
from helpers.query_models import build_query_model
from PIL import Image

from colonnade.common.errors import UserError
from colonnade.common.missing_libraries import import_optional
from colonnade.datasets.rle import encode_mask, make_json_rle
from colonnade.inference import Instances, LabelMap, PanopticMap
from colonnade.inference.loading import optimize_model
from colonnade.inference.notebooks import MAX_SIDE
from colonnade.runtime.images import ImageError

SHARED: dict[str, Any] = dict(
    size=(4, 6), classes=('cat', 'sky'), palette=((200, 0, 0), (0, 0, 200)))
MASKS = np.zeros((2, 4, 6), dtype=bool)
MASKS[0, 1:3, 2:5] = MASKS[1, 0, 0] = True
LABELS = np.zeros((4, 6), dtype=np.uint8)
LABELS[1:3, 2:] = 1
BOXES = np.array([[2, 1, 5, 3], [0, 0, 1, 1]], dtype=np.float32)
INSTANCES = Instances(
    boxes=BOXES,
    scores=np.array([0.75, 0.25], dtype=np.float32),
    labels=np.array([1, 0]),
    masks=tuple(make_json_rle(encode_mask(mask)) for mask in MASKS),
    **SHARED)
LABEL_MAP = LabelMap(labels=LABELS, **SHARED)
SEGMENTS = PanopticMap(
    segments=(MASKS[0] + 2 * MASKS[1]).astype(np.int32),
    labels=np.array([0, 1]),
    num_things=1,
    **SHARED)
RESULTS = dict(instances=INSTANCES, label_map=LABEL_MAP, segments=SEGMENTS)
IMAGE = np.full((4, 6, 3), 99, dtype=np.uint8)


def test_tables() -> None:
    assert INSTANCES.to_pandas().to_dict('records') == [
        {'class': 'sky', 'score': 0.75, 'left': 2, 'top': 1, 'right': 5, 'bottom': 3},
        {'class': 'cat', 'score': 0.25, 'left': 0, 'top': 0, 'right': 1, 'bottom': 1},
    ]  # yapf: disable
    assert list(INSTANCES.select(
        []).to_pandas()) == ['class', 'score', 'left', 'top', 'right', 'bottom']
    assert LABEL_MAP.to_pandas().to_dict('list') == {
        'class': ['cat', 'sky'],
        'fraction': [16 / 24, 8 / 24]
    }
    table = SEGMENTS.to_pandas()
    assert table['isthing'].tolist() == [True, False] and table['area'].tolist() == [6, 1]
    assert table[['left', 'top', 'right', 'bottom']].to_numpy().tolist() == BOXES.tolist()


@pytest.mark.parametrize('kind', RESULTS)
def test_detections(kind: str) -> None:
    detections = RESULTS[kind].to_supervision()
    names = dict(instances=['sky', 'cat'], label_map=['cat', 'sky'], segments=['cat', 'sky'])[kind]
    masks, boxes = MASKS, BOXES
    if kind == 'label_map':
        masks, boxes = np.stack([LABELS == 0, LABELS == 1]), np.array([[0, 0, 6, 4], [2, 1, 6, 3]])
    assert detections.data['class_name'].tolist() == names
    assert [SHARED['classes'][index] for index in detections.class_id] == names
    assert (detections.mask == masks).all() and (detections.xyxy == boxes).all()
    assert (detections.confidence is None) == (kind != 'instances')


def test_detections_without_masks_or_objects() -> None:
    boxes = INSTANCES.replace(masks=None).to_supervision()
    assert boxes.mask is None and len(boxes) == 2
    assert len(INSTANCES.select([]).to_supervision()) == 0
    empty = SEGMENTS.replace(segments=np.zeros((4, 6), dtype=np.int32), labels=np.zeros(0, int))
    assert len(empty.to_supervision()) == 0 and len(empty.to_pandas()) == 0


@pytest.mark.parametrize('kind', RESULTS)
def test_display(kind: str, tmp_path: Path) -> None:
    result = RESULTS[kind].replace(image=IMAGE)
    content = result._repr_png_()
    assert content is not None
    assert Image.open(BytesIO(content)).size == result.draw().size
    html = result._repr_html_()
    assert html is not None
    assert 'src="data:image/jpeg;base64,' in html and f'<figcaption>{result!r}<' in html
    # An image that is not there any more is no error: the notebook shows the text.
    for lost in (RESULTS[kind], RESULTS[kind].replace(source=str(tmp_path / 'lost.jpg'))):
        assert lost._repr_png_() is None and lost._repr_html_() is None


def test_classes_of_the_same_name() -> None:
    detections = LABEL_MAP.replace(classes=('sky', 'sky')).to_supervision()
    assert detections.class_id.tolist() == [0, 1]


def test_large_drawings_are_reduced() -> None:
    size = (40, 2 * MAX_SIDE)
    result = LABEL_MAP.replace(
        size=size, labels=np.zeros(size, np.uint8), image=np.zeros((*size, 3), np.uint8))
    content = result._repr_png_()
    assert content is not None and Image.open(BytesIO(content)).width == MAX_SIDE


def test_names_are_escaped() -> None:
    result = LABEL_MAP.replace(classes=('<script>', '"'), image=IMAGE)
    html = result._repr_html_()
    assert html is not None and '<script>' not in html and '&lt;script&gt;' in html


def test_missing_package() -> None:
    with pytest.raises(UserError, match='no_package is not installed: run pip install no_package'):
        import_optional('no_package')


@pytest.mark.parametrize('head', ['sem_fpn', 'mask_rcnn'])
def test_features(head: str, tmp_path: Path) -> None:
    """They are the maps of the neck during prediction."""
    model = build_random_model(head)
    image = np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    maps = model.features(image)
    taken: list[Any] = []
    neck = model.module.get_submodule('neck')
    handle = neck.register_forward_hook(lambda _, __, out: taken.append(out))
    model.predict(image)
    handle.remove()
    assert len(maps) >= 4 and not maps[0].requires_grad and not maps[0].is_inference()
    for found, expected in zip(maps, taken[0], strict=True):
        assert found.shape[:2] == (1, maps[0].shape[1])
        torch.testing.assert_close(found, expected.clone())
    path = tmp_path / 'image.png'
    Image.fromarray(image).save(path)
    torch.testing.assert_close(model.features(path)[0], maps[0])
    torch.testing.assert_close(model.features(image[..., ::-1], channels='bgr')[0], maps[0])
    with pytest.raises(ImageError, match='missing.png'):
        model.features(tmp_path / 'missing.png')
    with pytest.raises(UserError, match="channels must be rgb or bgr, got 'xyz'"):
        model.features(path, channels='xyz')  # type: ignore[arg-type]
    optimize_model(model, None, torch.bfloat16)
    half = model.features(image)[0]
    assert half.dtype == torch.float32 and (half - maps[0]).norm() < 0.1 * maps[0].norm()


def test_queries_are_no_features() -> None:
    model = build_query_model('eomt_semantic')
    with pytest.raises(UserError, match='on PlainViT has no feature maps'):
        model.features(np.zeros((64, 64, 3), dtype=np.uint8))
