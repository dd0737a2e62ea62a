"""A detector or segmenter with its weights, its classes and its test pipeline."""
from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from io import IOBase
from pathlib import Path
from typing import Any, Protocol, TypeAlias, overload, runtime_checkable

import cv2
import numpy as np
import torch
from mmengine.config import Config
from mmengine.structures import BaseDataElement
from PIL import Image
from torch import nn

from colonnade.common.errors import UserCodeError, UserError
from colonnade.common.prefetching import prefetch_map
from colonnade.datasets.bands import LoadBands, find_band_loader
from colonnade.datasets.rle import MAX_PIXELS as MAX_RLE_PIXELS
from colonnade.datasets.rle import encode_masks, make_json_rle
from colonnade.models.complexity import count_parameters
from colonnade.runtime.images import (MAX_PIXELS, ImageError, Source, TooLargeError, get_image_name,
                                      read_image)
from colonnade.runtime.results import number_segments
from colonnade.settings.registries import is_from_user_code

from .arrays import (CHANNELS, Channels, build_array_pipeline, convert_to_bands, convert_to_rgb,
                     get_test_steps, is_array)
from .batches import run_in_batches
from .drawing import Color
from .large_tiffs import decode_to_disk
from .results import Instances, LabelMap, PanopticMap, Result
from .tiling import View, compute_tiles, merge_results

NUM_WORKERS = 2  # threads that decode images
TILE_OVERLAP = 0.25
MAX_TILED_PIXELS = 2**30  # OpenCV's limit, which holds for images of training; not for TIFF
SingleImage: TypeAlias = str | Path | Image.Image | np.ndarray | torch.Tensor | bytes
IMAGE_TYPES = (str, Path, Image.Image, bytes, IOBase)  # types of one image, apart from arrays
OUTPUTS = dict(
    masks='boxes and masks', boxes='boxes', labels='label maps', panoptic='panoptic segments')
EXPECTED_IMAGE = 'expected a path, a Pillow image, an array, a tensor or the content of a file'


@runtime_checkable
class BinaryFile(Protocol):
    """An open file, or an object that can be read as one."""

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes, all of them by default."""


@dataclass(frozen=True)
class Prediction:
    """Prediction for one image, or the error that prevented it."""
    source: Any  # the image as it was passed
    image: np.ndarray | None = None  # RGB values, (H, W, 3); None after an error
    result: Result | None = None  # None after an error
    error: ImageError | None = None  # error of reading or preparing the image


@dataclass(frozen=True)
class PreparedImage:
    """An image after the test pipeline; ``data`` is None if it could not be prepared."""
    prediction: Prediction
    data: dict[str, Any] | None = None

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Shape of the network's input."""
        return None if self.data is None else tuple(self.data['inputs'].shape)


class UserCodeImageError(ImageError, UserCodeError):
    """An image on which a user's own transform or model fails."""


def build_image_error(message: str, cause: Exception) -> ImageError:
    """Return an error for an image on which pipeline or model raised ``cause``."""
    is_user_code = isinstance(cause, UserCodeError) or is_from_user_code(cause)
    return (UserCodeImageError if is_user_code else ImageError)(message)


def is_single_image(images: Any) -> bool:
    """Return True for one image, False for several, such as an array of four dimensions."""
    return images.ndim < 4 if is_array(images) else isinstance(images, IMAGE_TYPES)


def load_pillow_image(source: Source) -> Source:
    """Return an image, decoded if it is a Pillow image, which no two threads may decode."""
    if isinstance(source, Image.Image):
        with suppress(Exception):  # Reading it will report that it is damaged.
            source.load()
    return source


def decode_image(source: Source,
                 channels: Channels,
                 bands: LoadBands | None,
                 max_pixels: int = MAX_PIXELS,
                 advice: str = '') -> Prediction:
    """Return an image with its RGB values or all bands, or with the error of reading it.

    Args:
        advice: What to do about an image of more than ``max_pixels``.
    """
    try:
        if is_array(source):
            return Prediction(
                source,
                convert_to_bands(source, bands.num_bands) if bands else convert_to_rgb(
                    source, channels))
        if bands and isinstance(source, (str, Path, bytes)):
            return Prediction(source, bands.read(source, max_pixels))
        if bands:
            raise ImageError(f'the model reads {bands.num_bands} bands: pass a path, the content '
                             f'of a file or an array, got {type(source).__name__}')
        if not isinstance(source, (*IMAGE_TYPES, BinaryFile)):
            raise ImageError(f'{EXPECTED_IMAGE}, got {type(source).__name__}')
        image = decode_to_disk(source, max_pixels) if max_pixels > MAX_PIXELS else None
        return Prediction(source,
                          read_image(source, max_pixels=max_pixels) if image is None else image)
    except TooLargeError as error:
        return Prediction(source, error=TooLargeError(f'{error}{advice}'))
    except ImageError as error:
        return Prediction(source, error=error)


def keep_image(prediction: Prediction, bands: LoadBands | None) -> Prediction:
    """Return a prediction whose result holds the image, unless it can be read from its path.

    Three of several bands become a picture.
    """
    image, result = prediction.image, prediction.result
    if result is None:
        return prediction
    if bands:
        assert image is not None  # because there is a result
        image = bands.to_rgb(image)
    elif result.source is not None:
        return prediction
    return replace(prediction, image=image, result=replace(result, image=image))


def get_model_kind(module: nn.Module) -> str:
    """Return what a model predicts: ``'masks'``, ``'boxes'``, ``'labels'`` or ``'panoptic'``."""
    parts = dict(module.named_children())
    if 'decode_head' in parts:
        return 'labels'
    if 'panoptic_fusion_head' in parts:
        test_cfg = parts['panoptic_fusion_head'].test_cfg
        if test_cfg.get('panoptic_on', True):  # mmdet's default
            return 'panoptic'
        if not test_cfg.get('instance_on', False):
            raise UserError('the model predicts nothing: set panoptic_on=True or instance_on=True '
                            'in model.test_cfg')
        return 'masks'
    names = [*parts]
    for name in ('roi_head', 'bbox_head'):
        names += [key for key, _ in parts[name].named_children()] if name in parts else []
    return 'masks' if any('mask_head' in name for name in names) else 'boxes'


class Model:
    """A detector or segmenter that predicts; built by :func:`load`.

    Attributes:
        module: Model of mmdet or mmseg, in evaluation mode.
        name: Class name of the (last) decode head, of the panoptic head, or of the detector.
        cfg: Config of the model.
        classes: Class names.
        palette: Color of each class, ``(red, green, blue)``.
        kind: ``'masks'`` (instances with masks), ``'boxes'`` (instances without masks),
            ``'labels'`` (label maps) or ``'panoptic'`` (segments of things and stuff).
        source: Path or URL of the weights.
        num_parameters: Number of parameters before layers are fused.
        bands: Step that loads images of more bands than RGB, else None.
        progress: ``epoch`` and ``iter`` of the checkpoint, if it has them.
        half_type: Type of 16 bits in which the model computes, or None.
    """
    half_type: torch.dtype | None = None

    def __init__(self,
                 module: nn.Module,
                 cfg: Config,
                 classes: tuple[str, ...],
                 palette: tuple[Color, ...],
                 source: str,
                 progress: dict[str, int] | None = None) -> None:
        self.module, self.cfg, self.source = module, cfg, source
        parts = dict(module.named_children())
        head = parts.get('decode_head', parts.get('panoptic_head', module))
        self.name = type(head[-1] if isinstance(head, nn.ModuleList) else head).__name__
        self.classes, self.palette = classes, palette
        self.kind, self.num_parameters = get_model_kind(module), count_parameters(module)
        self.pipeline = build_array_pipeline(cfg)
        self.bands = find_band_loader(get_test_steps(cfg))
        self.progress = progress or {}

    def __repr__(self) -> str:
        return (f'{self.name} on {self.backbone_name}, {len(self.classes)} classes, '
                f'predicts {OUTPUTS[self.kind]}, weights from {self.source}, on {self.device}')

    @property
    def backbone_name(self) -> str:
        """Class name of the backbone."""
        return type(dict(self.module.named_children()).get('backbone')).__name__

    @property
    def num_things(self) -> int:
        """Number of classes of objects, which come first if there are others."""
        fusion_head = dict(self.module.named_children()).get('panoptic_fusion_head')
        return len(self.classes) if fusion_head is None else fusion_head.num_things_classes

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(self.module.parameters()).device

    @property
    def default_batch_size(self) -> int:
        """8 on a GPU, 1 on a CPU, where larger batches are not faster."""
        return 1 if self.device.type == 'cpu' else 8

    def prepare(self, image: np.ndarray, name: str = 'the image') -> dict[str, Any]:
        """Run the test pipeline on RGB values ``(H, W, 3)``, uint8, or on bands ``(H, W, N)``.

        Returns:
            ``inputs``, ``(N, h, w)``, and ``data_samples``.

        Raises:
            ImageError: If the pipeline fails; the message contains ``name``.
        """
        try:
            values = image if self.bands else image[..., ::-1]
            return self.pipeline(dict(img=np.ascontiguousarray(values), img_id=0))
        except (ValueError, TypeError, AssertionError, ZeroDivisionError, cv2.error) as error:
            height, width = image.shape[:2]
            reason = ' '.join(str(error).split())
            raise build_image_error(
                f'the test pipeline of the config fails on {name} of {height} x {width} pixels: '
                f'{reason}', error) from error

    def run(self, batch: Sequence[dict[str, Any]]) -> list[BaseDataElement]:
        """Return the data samples of mmdet or mmseg for outputs of :meth:`prepare`.

        Raises:
            ImageError: If the model fails on a batch of one image.
        """
        data = {key: [item[key] for item in batch] for key in ('inputs', 'data_samples')}
        try:
            with torch.inference_mode():
                return self.module.test_step(data)
        except torch.OutOfMemoryError:
            raise
        except (ValueError, AssertionError, RuntimeError) as error:
            if len(batch) > 1:
                raise
            raise build_image_error(f'the model fails on it: {error}', error) from error

    def build_result(self, sample: BaseDataElement, source: Any = None) -> Result:
        """Convert a data sample of mmdet or mmseg; ``source`` is kept if it is a path."""
        path = str(source) if isinstance(source, (str, Path)) else None
        shared: dict[str, Any] = dict(classes=self.classes, palette=self.palette, source=path)
        if self.kind == 'labels':
            labels = sample.pred_sem_seg.data[0].cpu().numpy()
            dtype = np.uint8 if len(self.classes) <= 256 else np.uint16
            return LabelMap(size=labels.shape, labels=labels.astype(dtype), **shared)
        if self.kind == 'panoptic':
            codes = sample.pred_panoptic_seg.sem_seg[0].cpu().numpy()
            segments, labels = number_segments(codes, len(self.classes))
            return PanopticMap(
                size=segments.shape,
                segments=segments,
                labels=labels.astype(np.int64),
                num_things=self.num_things,
                **shared)
        instances, masks = sample.pred_instances, None
        if self.kind == 'masks':
            rles = instances.masks
            if isinstance(rles, torch.Tensor):
                rles = encode_masks(rles.cpu().numpy())
            masks = tuple(map(make_json_rle, rles))
        return Instances(
            size=tuple(sample.ori_shape[:2]),
            boxes=instances.bboxes.float().cpu().numpy().reshape(-1, 4),
            scores=instances.scores.float().cpu().numpy(),
            labels=instances.labels.cpu().numpy().astype(np.int64),
            masks=masks,
            **shared).sorted()

    def iter_predictions(self,
                         images: Iterable[Source],
                         *,
                         channels: Channels = 'rgb',
                         batch_size: int | None = None,
                         tile: int | None = None,
                         overlap: float | None = None) -> Iterator[Prediction]:
        """Return an iterator over predictions, in order, which reports unreadable images.

        Threads decode the next images during the computation. Images of equal prepared size share a
        batch, so predictions equal those of single images up to rounding error.

        Args:
            images: Images as in :meth:`predict`; may be endless.
            channels: Channel order of arrays and tensors: ``'rgb'``, or ``'bgr'`` from OpenCV.
            batch_size: Images per batch. Defaults to :attr:`default_batch_size`.
            tile: Largest height and width in pixels that is predicted at once. Larger images are
                predicted in tiles, and by detectors also as a whole, see :mod:`.tiling`. Panoptic
                models cannot merge tiles.
            overlap: Fraction of a tile that overlaps the next one. Defaults to 0.25.

        Raises:
            ValueError: If an option is out of range.
        """
        self._check_channels(channels)
        size = self.default_batch_size if batch_size is None else batch_size
        if size < 1:
            raise UserError(f'batch_size must be at least 1, got {size}')
        images = map(load_pillow_image, images)
        keep = partial(keep_image, bands=self.bands)
        if tile is None:
            if overlap is not None:
                raise UserError('overlap has no effect without tile')
            advice = ', or pass --tile-size 1024 (in Python, tile=1024)'
            advice *= self.kind != 'panoptic'  # whose tiles cannot be merged
            decode = partial(decode_image, channels=channels, bands=self.bands, advice=advice)
            prepared = prefetch_map(
                lambda source: self._prepare(decode(source)),
                images,
                workers=NUM_WORKERS,
                ahead=2 * size + 2)
            return map(keep, self._predict_batches(prepared, size))
        if self.kind == 'panoptic':
            raise UserError('tiles of panoptic models cannot be merged: omit tile')
        overlap = TILE_OVERLAP if overlap is None else overlap
        compute_tiles((1, 1), tile, overlap)  # raises if tile or overlap is out of range
        decode = partial(
            decode_image, channels=channels, bands=self.bands, max_pixels=MAX_TILED_PIXELS)
        decoded = prefetch_map(decode, images, workers=1, ahead=1)
        return map(keep, self._predict_tiles(decoded, size, tile, overlap))

    def _predict_tiles(self, decoded: Iterable[Prediction], batch_size: int, tile: int,
                       overlap: float) -> Iterator[Prediction]:
        for prediction in decoded:
            if prediction.image is None:
                yield prediction
                continue
            size = prediction.image.shape[:2]
            if self.kind == 'masks' and math.prod(size) > MAX_RLE_PIXELS:
                name = get_image_name(prediction.source)
                too_large = TooLargeError(
                    f'{name} has {math.prod(size):,} pixels, more than the {MAX_RLE_PIXELS:,} of '
                    'COCO masks: split it into tiles')
                yield replace(prediction, image=None, error=too_large)
                continue
            views = compute_tiles(size, tile, overlap)
            if len(views) > 1 and self.kind != 'labels' and math.prod(size) <= MAX_TILED_PIXELS:
                views.append(View(0, 0, *size))
            crops = (replace(prediction, image=prediction.image[view.slices]) for view in views)
            prepared = prefetch_map(
                self._prepare, crops, workers=NUM_WORKERS, ahead=2 * batch_size + 2)
            parts = list(self._predict_batches(prepared, batch_size))
            if error := next((part.error for part in parts if part.error), None):
                yield replace(prediction, image=None, error=error)
            else:
                results = [part.result for part in parts if part.result is not None]
                yield replace(prediction, result=merge_results(results, views, size))

    def _prepare(self, prediction: Prediction) -> PreparedImage:
        if prediction.image is None:
            return PreparedImage(prediction)
        try:
            data = self.prepare(prediction.image, get_image_name(prediction.source))
        except ImageError as error:
            return PreparedImage(replace(prediction, image=None, error=error))
        return PreparedImage(prediction, data)

    def _predict_batches(self, items: Iterable[PreparedImage],
                         batch_size: int) -> Iterator[Prediction]:
        for item, output in run_in_batches(
                self._predict_batch, items, get_shape=lambda item: item.shape,
                batch_size=batch_size):
            if isinstance(output, ImageError):
                yield replace(item.prediction, image=None, error=output)
            else:
                yield replace(item.prediction, result=output)

    def _predict_batch(self, batch: list[PreparedImage]) -> list[Result | ImageError]:
        """Return the results of a batch; image by image if the model fails on the batch."""
        try:
            samples = self.run([item.data for item in batch if item.data is not None])
            return [
                self.build_result(sample, item.prediction.source)
                for item, sample in zip(batch, samples, strict=True)
            ]
        except torch.OutOfMemoryError:
            raise
        except (ValueError, AssertionError, RuntimeError) as error:
            if len(batch) > 1:
                return [output for item in batch for output in self._predict_batch([item])]
            name = get_image_name(batch[0].prediction.source)
            image_error = build_image_error(f'{name}: {error}', error)
            image_error.__cause__ = error.__cause__ or error
            return [image_error]

    @torch.no_grad()
    def features(self,
                 image: SingleImage,
                 *,
                 channels: Channels = 'rgb') -> tuple[torch.Tensor, ...]:
        """Return the feature maps that the heads read, ``(1, C, h, w)`` each, the finest first.

        ``h`` and ``w`` are the sizes of the image after the test pipeline, which resizes and pads,
        divided by the strides.

        Args:
            image: Image as in :meth:`predict`.
            channels: Channel order of arrays and tensors.

        Raises:
            ImageError: If the image cannot be read.
            ValueError: If the model has no feature maps, such as EoMT.
        """
        self._check_channels(channels)
        prediction = decode_image(load_pillow_image(image), channels, self.bands)
        if prediction.image is None:
            assert prediction.error is not None  # see Prediction
            raise prediction.error
        data = self.prepare(prediction.image, get_image_name(image))
        batch = dict(inputs=[data['inputs']], data_samples=[data['data_samples']])
        preprocessor = self.module.get_submodule('data_preprocessor')
        with torch.autocast(self.device.type, self.half_type, self.half_type is not None):
            maps = self.module.extract_feat(preprocessor(batch, False)['inputs'])
        if not all(isinstance(each, torch.Tensor) for each in maps):
            raise UserError(f'{self.name} on {self.backbone_name} has no feature maps')
        return tuple(each.float() for each in maps)

    def _check_channels(self, channels: Channels) -> None:
        """Raise a UserError if a channel order is unknown, or has no effect."""
        if channels not in CHANNELS:
            raise UserError(f'channels must be {" or ".join(CHANNELS)}, got {channels!r}')
        if self.bands and channels != 'rgb':
            raise UserError(f'channels has no effect: the model reads {self.bands.num_bands} bands')

    def predict_stream(self, images: Iterable[Source], **options: Any) -> Iterator[Result]:
        """Yield the result of each image, with the options of :meth:`iter_predictions`.

        Raises:
            ImageError: If an image cannot be read.
        """
        if is_single_image(images):
            raise TypeError('predict_stream expects several images: use predict for one image')
        for prediction in self.iter_predictions(images, **options):
            if prediction.error is not None:
                raise prediction.error
            assert prediction.result is not None  # see Prediction
            yield prediction.result

    @overload
    def predict(self, images: SingleImage, **options: Any) -> Result:
        ...

    @overload
    def predict(self, images: Iterable[Source], **options: Any) -> list[Result]:
        ...

    def predict(self, images: Any, **options: Any) -> Result | list[Result]:
        """Predict one image or several.

        Args:
            images: A path, a Pillow image, the content of a file, an array or a tensor, or several
                of these. Arrays are ``(H, W, 3)`` or ``(H, W)``, tensors also ``(3, H, W)``, with
                uint8 values or floats from 0 to 1. Arrays of four dimensions are several images.
            **options: ``channels``, ``batch_size``, ``tile`` and ``overlap`` of
                :meth:`iter_predictions`.

        Returns:
            An :class:`Instances`, :class:`LabelMap` or :class:`PanopticMap`; for several images, a
            list.

        Raises:
            ImageError: If an image cannot be read.
            ValueError: If an option is out of range.
        """
        if is_single_image(images):
            return next(self.predict_stream([images], **options))
        if not isinstance(images, Iterable):
            raise TypeError(f'{EXPECTED_IMAGE}, got {type(images).__name__}')
        return list(self.predict_stream(images, **options))
