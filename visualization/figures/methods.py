"""Methods that draw figures, which models they support, and figures as files."""
from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from torch import nn

from colonnade.backbones import CaiT, ColumnarBackbone, ResMLP, XCiT
from colonnade.backbones.attention_maps import has_token_attention
from colonnade.common.atomic_files import atomic_write
from colonnade.common.errors import UserError, file_errors
from colonnade.inference import load
from colonnade.inference.inputs import Input, find_inputs
from colonnade.inference.loading import CHECKPOINTS, check_model_paths
from colonnade.inference.model import Model
from colonnade.runtime.images import MAX_PIXELS, Source, get_image_name, num_frames, read_image

from ..options import VisualizationOptions, VisualizeOptions
from .attention import (Drawer, Images, make_attention_drawer, make_channel_attention_drawer,
                        make_class_attention_drawer, make_magnitude_drawer, make_mixing_drawer)
from .feature_figures import make_feature_drawer
from .figure_inputs import PreparedImage, prepare_image
from .grad_cam import make_grad_cam_drawer
from .layout import build_figure, figure_to_bytes

COMMON_OPTIONS = frozenset({'size', 'trust'})  # options of all methods
MIN_DPI, MAX_DPI = 10, 1200


@dataclass(frozen=True)
class Method:
    """Method that draws figures."""
    make_drawer: Callable[[Model, VisualizationOptions, Images], Drawer]
    supports: Callable[[nn.Module], bool]  # whether a backbone has what is drawn
    own_options: str  # names of options, separated by spaces

    @property
    def options(self) -> frozenset[str]:
        """Names of all options that have an effect."""
        return COMMON_OPTIONS | set(self.own_options.split())


def is_instance_of(*types: type[nn.Module]) -> Callable[[nn.Module], bool]:
    """Return a predicate for backbones of these types."""
    return lambda backbone: isinstance(backbone, types)


METHODS = {
    'class-attention': Method(make_class_attention_drawer, is_instance_of(XCiT, CaiT),
                              'classifier blocks heads interpolation'),
    'attention': Method(make_attention_drawer, has_token_attention,
                        'blocks heads point interpolation'),
    'query-key': Method(make_magnitude_drawer, is_instance_of(XCiT), 'blocks heads interpolation'),
    'channel-attention': Method(make_channel_attention_drawer, is_instance_of(XCiT),
                                'blocks heads'),
    'mixing': Method(make_mixing_drawer, is_instance_of(ResMLP), 'blocks point'),
    'features': Method(make_feature_drawer, is_instance_of(nn.Module), 'interpolation'),
    'grad-cam': Method(make_grad_cam_drawer, is_instance_of(nn.Module), 'target interpolation'),
}  # yapf: disable


def available_methods(model: Model, *, classifier: Any = None) -> tuple[str, ...]:
    """Return the names of the methods that support a model.

    Args:
        model: Model of :func:`colonnade.load`.
        classifier: Weights of a classifier, which ``class-attention`` needs. Defaults to none.
    """
    return tuple(name for name in METHODS if is_supported(model, name) and
                 (name != 'class-attention' or classifier is not None))  # yapf: disable


def is_supported(model: Model, name: str) -> bool:
    """Return True if a method supports a model; segments have no scores for Grad-CAM."""
    backbone = model.module.backbone
    if name == 'grad-cam' and model.kind == 'panoptic':
        return False
    if isinstance(backbone, ColumnarBackbone) and not backbone.has_feature_maps:
        return name == 'features' and model.module.with_neck
    return METHODS[name].supports(backbone)


def visualize(model: Model, image: Source, method: str, **options: Any) -> Figure:
    """Return a figure that explains what a model computes for an image.

    The model must not be used by other threads meanwhile, and is unchanged afterwards.

    Args:
        model: Model of :func:`colonnade.load`.
        image: Path, Pillow image, RGB values ``(H, W, 3)`` or content of a file.
        method: One of :func:`available_methods`.
        **options: Attributes of :class:`VisualizationOptions`.

    Returns:
        A matplotlib figure; :func:`figure_to_bytes` converts it to PNG or PDF.

    Raises:
        ImageError: If the image cannot be read.
        TypeError: If an option does not exist.
        ValueError: If the method does not support the model, or an option is invalid.
    """
    return next(visualize_batch(model, [image], method, **options))


def visualize_batch(model: Model, images: Sequence[Source], method: str,
                    **options: Any) -> Iterator[Figure]:
    """Like :func:`visualize`, for several images, for which ``features`` uses the same colors.

    Raises:
        ImageError: If an image cannot be read.
        TypeError: If an option does not exist.
        ValueError: If the method does not support the model, or an option is invalid.
    """
    checked = VisualizationOptions(**options)
    check_size(checked.size)
    check_methods(model, [method], checked)

    read = model.bands.read if model.bands else read_image

    def prepare_all() -> Iterator[PreparedImage]:
        return (prepare_image(model, read(image), checked.size, get_image_name(image))
                for image in images)

    draw = METHODS[method].make_drawer(model, checked, prepare_all)
    return (build_figure(draw(image)) for image in prepare_all())


def check_size(size: tuple[int, int] | None) -> None:
    """Check that images can be resized to a height and width."""
    if size and (min(size) < 1 or size[0] * size[1] > MAX_PIXELS):
        raise UserError(f'size must be (height, width), with at most {MAX_PIXELS:,} pixels in all '
                        f'(height x width), got {size[0]} x {size[1]}')


def check_methods(model: Model, names: Sequence[str], options: VisualizationOptions) -> None:
    """Check that methods support a model, and that all options have an effect."""
    for name in names:
        if name not in METHODS or not is_supported(model, name):
            known = ', '.join(available_methods(model, classifier=options.classifier or True))
            subject = 'a panoptic model' if name == 'grad-cam' and model.kind == 'panoptic' else \
                model.backbone_name
            raise UserError(
                f'{subject} does not support the method {name!r}: '
                f'expected one of {known}' if known else f'{subject} supports no method')
    used = frozenset().union(*(METHODS[name].options for name in names))
    if unused := sorted(options.list_changed() - used):
        raise UserError(f'{" and ".join(unused)} would have no effect on {", ".join(names)}: '
                        f'remove {"them" if unused[1:] else "it"}')


def write_figures(args: VisualizeOptions) -> Iterator[Path]:
    """Write all figures of ``colonnade visualize``, and yield their paths.

    As many errors as possible are found before anything is computed.
    """
    check_size(args.size)
    if not MIN_DPI <= args.dpi <= MAX_DPI:
        raise UserError(f'--dpi must be between {MIN_DPI} and {MAX_DPI}, got {args.dpi}')
    checkpoint, inputs = find_files(args)
    images, stems = [item.path for item in inputs], [item.stem for item in inputs]
    check_new(args.out, stems, args.methods or (), args.format)
    model = load(
        args.config, checkpoint, device=args.device, cfg_options=args.cfg_options, trust=args.trust)
    for image in images:
        if model.bands:
            model.bands.read(image)
            continue
        read_image(image)
        if (number := num_frames(image)) > 1:
            print(f'{image}: using the first of {number} frames', file=sys.stderr, flush=True)
    names = args.methods or available_methods(model, classifier=args.classifier)
    if not names:
        raise UserError(f'no method supports this model: {model.backbone_name} has no feature '
                        'maps, since the head runs its last blocks')
    check_methods(model, names, args)
    check_new(args.out, stems, names, args.format)
    figures_by_name = {
        name: visualize_batch(
            model, images, name,
            **{key: vars(args)[key]
               for key in args.list_changed() & METHODS[name].options})
        for name in names
    }  # yapf: disable
    for name, figures in figures_by_name.items():
        for stem, figure in zip(stems, figures, strict=True):
            for kind in dict.fromkeys(args.format):
                path = args.out / f'{stem}.{name}.{kind}'
                with file_errors(), atomic_write(path) as scratch:
                    scratch.write_bytes(figure_to_bytes(figure, kind, args.dpi))
                yield path


@file_errors()
def find_files(args: VisualizeOptions) -> tuple[str | None, list[Input]]:
    """Return the checkpoint, or None if CONFIG contains weights, and the images."""
    has_weights = args.config.is_dir() or args.config.suffix in CHECKPOINTS
    checkpoint = None if has_weights else args.checkpoint
    check_model_paths(args.config, checkpoint)
    paths = [args.checkpoint] if args.checkpoint else []
    names = [*paths, *args.images] if has_weights else args.images
    if not names:
        passed = ' '.join(map(str, [args.config, *paths]))
        raise UserError(f'no image after {passed}: pass image files')
    inputs = find_inputs(names, args.out)
    for item in inputs:
        if item.is_video:
            raise UserError(f'{item.path} is a video: pass image files')
    return checkpoint, inputs


@file_errors()
def check_new(out: Path, stems: Sequence[str], names: Sequence[str], kinds: Sequence[str]) -> None:
    """Raise an error if a figure would replace a file, or ``out`` is a file."""
    if out.exists() and not out.is_dir():
        raise UserError(f'{out} is a file: choose a folder for --out')
    for path in (out / f'{stem}.{name}.{kind}' for stem in stems for name in names
                 for kind in kinds):  # yapf: disable
        if path.exists():
            raise UserError(f'{path} already exists: choose another --out, or remove it')
