"""Exported models with a handmade network: a 1x1 convolution."""
from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WEIGHTS = np.array([[0.5, -1, 0], [0, 0.5, -1], [-1, 0, 0.5]], dtype=np.float32)
ABOUT: dict[str, Any] = dict(
    format=1,
    task='segmentation',
    preprocess=dict(
        steps=[dict(type='resize', scale=[24, 16], keep_ratio=True)],
        channels='RGB',
        mean=[100., 110., 120.],
        std=[50., 55., 60.],
        pad=None,
        multiple=8,
        least=1),
    postprocess=dict(kind='logits', align_corners=False, threshold=None, windows=None),
    classes=['red', 'green', 'blue'],
    palette=[[255, 0, 0], [0, 255, 0], [0, 0, 255]])


def write_folder(folder: Path, **changes: Any) -> Path:
    """Write an exported segmenter to a new folder, with changes of ``model.json``."""
    folder.mkdir(parents=True)
    pixel = helper.make_node('Conv', ['image', 'weights'], ['logits'])
    sizes = ['batch', 3, 'height', 'width']
    graph = helper.make_graph([pixel], 'by_hand',
                              [helper.make_tensor_value_info('image', TensorProto.FLOAT, sizes)],
                              [helper.make_tensor_value_info('logits', TensorProto.FLOAT, sizes)],
                              [numpy_helper.from_array(WEIGHTS[..., None, None], 'weights')])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 20)], ir_version=10)
    path = folder / 'model.onnx'
    onnx.save(model, path)
    file = dict(file=path.name, sha256=sha256(path.read_bytes()).hexdigest(),
                inputs=['image'], outputs=['logits'])  # yapf: disable
    about = {**ABOUT, 'graphs': dict(model=file), **changes}
    (folder / 'model.json').write_text(json.dumps(about))
    return folder
