"""Images passed as arrays or tensors, and the test pipeline of a config for them."""
from __future__ import annotations

from copy import deepcopy
from typing import Any, Literal

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import DefaultScope

from colonnade.common.errors import UserError
from colonnade.runtime.bands import to_finite
from colonnade.runtime.images import ImageError
from colonnade.settings.pipeline_steps import get_step_type, is_loading_annotations

Channels = Literal['rgb', 'bgr']
CHANNELS = ('rgb', 'bgr')
LOADERS = ('LoadImageFromFile', 'LoadBands')
EXPECTED = ('expected an array of shape (H, W, 3) or (H, W), or a tensor, also of shape (3, H, W), '
            'with uint8 values or floats from 0 to 1')


def is_array(source: Any) -> bool:
    """Return True if an image, or several, are passed as an array or a tensor."""
    return isinstance(source, (np.ndarray, torch.Tensor))


def convert_to_rgb(image: np.ndarray | torch.Tensor, channels: Channels) -> np.ndarray:
    """Return a copy of an image as RGB values, ``(H, W, 3)``, uint8.

    Args:
        image: ``(H, W, 3)``, ``(H, W, 1)`` or ``(H, W)``; a tensor also ``(3, H, W)`` or
            ``(1, H, W)``. Values are uint8, or floats from 0 to 1.
        channels: Channel order of ``image``.

    Raises:
        ImageError: If shape, type or values are not these.
    """
    if isinstance(image, torch.Tensor):
        values = image.detach().cpu()
        values = (values.float() if values.is_floating_point() else values).numpy()
        if values.ndim == 3 and values.shape[0] in (1, 3):
            values = values.transpose(1, 2, 0)
    else:
        values = image
    if values.ndim == 2:
        values = values[..., None]
    is_float = np.issubdtype(values.dtype, np.floating)
    has_image_shape = values.ndim == 3 and values.shape[2] in (1, 3) and values.size
    if not has_image_shape or not (is_float or values.dtype == np.uint8):
        raise ImageError(f'{EXPECTED}; got shape {tuple(image.shape)} and type {image.dtype}')
    if is_float:
        if not (values.min() >= 0 and values.max() <= 1):
            raise ImageError(f'{EXPECTED}; got floats from {values.min():g} to {values.max():g}')
        values = (values * 255).round().astype(np.uint8)
    if channels == 'bgr':
        values = values[..., ::-1]
    return np.array(np.broadcast_to(values, (*values.shape[:2], 3)), order='C')


def convert_to_bands(image: np.ndarray | torch.Tensor, num_bands: int) -> np.ndarray:
    """Return an image as values ``(H, W, N)``, uint8 or float32.

    Args:
        image: ``(H, W, N)``; a tensor also ``(N, H, W)``.
        num_bands: Number N of bands.

    Raises:
        ImageError: If it has another shape.
    """
    if isinstance(image, torch.Tensor):
        values = image.detach().cpu()
        if values.ndim == 3 and values.shape[0] == num_bands:
            values = values.permute(1, 2, 0)
        image = (values.float() if values.is_floating_point() else values).numpy()
    values = to_finite(image, 'the image')
    if values.shape[2] != num_bands:
        raise ImageError(f'expected an array of shape (H, W, {num_bands}), got {values.shape}')
    return values


def build_array_pipeline(cfg: Config) -> Compose:
    """Build the test pipeline of a config for decoded images, see :func:`get_array_steps`."""
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        return Compose(get_array_steps(cfg))


def get_test_steps(cfg: Config) -> list[dict[str, Any]]:
    """Return the steps of the test pipeline, or of the validation pipeline."""
    loader = cfg.get('test_dataloader') or cfg.get('val_dataloader') or {}
    if isinstance(loader, list):  # several datasets, tested one after the other
        loader = loader[0]
    dataset = loader.get('dataset') or {}
    while 'pipeline' not in dataset and {'dataset', 'datasets'} & dataset.keys():  # a wrapper
        dataset = dataset.get('dataset') or dataset['datasets'][0]
    return deepcopy(dataset.get('pipeline') or cfg.get('test_pipeline') or [])


def get_array_steps(cfg: Config) -> list[dict[str, Any]]:
    """Return the steps of :func:`get_test_steps` for decoded images."""
    steps = get_test_steps(cfg)
    load = next((step for step in steps if get_step_type(step) in LOADERS), None)
    if load is None:
        raise UserError(f'the config has no test pipeline that begins with {" or ".join(LOADERS)}')
    if (color_type := load.get('color_type', 'color')) != 'color':
        raise UserError(
            f'LoadImageFromFile has color_type {color_type!r} in the config: prediction '
            "supports only 'color'")
    settings = {key: load[key] for key in ('to_float32', ) if key in load}
    settings['type'] = f'{cfg.default_scope}.LoadImageFromNDArray'
    return [settings if step is load else step for step in steps
            if not is_loading_annotations(step)]  # yapf: disable
