"""Figures of several images as files."""
from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from colonnade.common.atomic_files import atomic_write
from colonnade.common.errors import UserError, file_errors
from colonnade.inference import load, read_image
from colonnade.inference.inputs import Input, find_inputs
from colonnade.inference.loading import CHECKPOINTS, check_types
from colonnade.runtime.images import num_frames

from ..options import VisualizeOptions
from .figure_options import Options
from .layout import as_bytes
from .methods import KINDS, available_methods, check_methods, pictures

OPTIONS = ('blocks', 'heads', 'point', 'classifier', 'target', 'size', 'nearest', 'trust')
LEAST_DPI, MOST_DPI = 10, 1200


def visualize(args: VisualizeOptions) -> Iterator[Path]:
    """Write all figures that the command line asks for, and yield the path of each.

    All that can be wrong is checked before anything is computed, as far as it can be known.

    Raises:
        OSError: If a file is missing, exists already or cannot be written.
        ValueError: If the model, the options and the images do not fit each other.
    """
    given = {name: vars(args)[name] for name in OPTIONS}
    options = Options.of({key: value for key, value in given.items() if value is not None})
    if not LEAST_DPI <= args.dpi <= MOST_DPI:
        raise UserError(f'--dpi is from {LEAST_DPI} to {MOST_DPI}, got {args.dpi}')
    checkpoint, inputs = find_files(args)
    images, stems = [item.path for item in inputs], [item.stem for item in inputs]
    require_new(args.out, stems, args.what or (), args.format)
    check_images(images)
    model = load(
        args.config, checkpoint, device=args.device, cfg_options=args.cfg_options, trust=args.trust)
    names = args.what or available_methods(model, classifier=options.classifier)
    check_methods(model, names, options)
    require_new(args.out, stems, names, args.format)
    each = {name: pictures(model, images, name, **select_options(name, options)) for name in names}
    for name, figures in each.items():
        for stem, figure in zip(stems, figures, strict=True):
            for kind in dict.fromkeys(args.format):
                path = args.out / f'{stem}.{name}.{kind}'
                with file_errors(), atomic_write(path) as scratch:
                    scratch.write_bytes(as_bytes(figure, kind, args.dpi))
                yield path


@file_errors()
def find_files(args: VisualizeOptions) -> tuple[str | None, list[Input]]:
    """Return the checkpoint, None if the config has weights of its own, and the images.

    Raises:
        FileNotFoundError: If an image is not there.
        ValueError: If there is no checkpoint, no image, or a video.
    """
    holds_weights = args.config.is_dir() or args.config.suffix in CHECKPOINTS
    checkpoint = None if holds_weights else args.checkpoint
    check_types(args.config, checkpoint)
    names = [args.checkpoint, *args.images] if holds_weights else args.images
    if not names:
        raise UserError(f'no image behind {args.config} {args.checkpoint}: name images')
    inputs = find_inputs(names, args.out)
    for item in inputs:
        if item.is_video:
            raise UserError(f'{item.path} is a video: pictures are of images')
    return checkpoint, inputs


def check_images(images: Sequence[Path]) -> None:
    """Raise an ImageError if one cannot be read; print which have frames that are not shown."""
    for image in images:
        read_image(image)
        if (number := num_frames(image)) > 1:
            print(f'{image}: the first of {number} frames', file=sys.stderr, flush=True)


def select_options(name: str, options: Options) -> dict[str, Any]:
    """Return the options that are set and that a method follows."""
    return {key: vars(options)[key] for key in options.set_names() & KINDS[name].options}


@file_errors()
def require_new(out: Path, stems: Sequence[str], names: Sequence[str],
                kinds: Sequence[str]) -> None:
    """Raise a UserError if a figure would replace a file, or ``out`` is a file."""
    if out.exists() and not out.is_dir():
        raise UserError(f'{out} is a file: --out must be a folder')
    for stem in stems:
        for name in names:
            for kind in kinds:
                if (path := out / f'{stem}.{name}.{kind}').exists():
                    raise UserError(f'{path} exists: name another --out, or remove it')
