"""What ``tools/predict.py`` does, from its arguments to a folder of predictions."""
from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from colonnade.common.atomic_files import atomic_write
from colonnade.common.console_logging import print_traceback
from colonnade.common.errors import FileError, MissingFileError, UserError, file_errors
from colonnade.common.prefetching import prefetch_map
from colonnade.common.progress import Progress
from colonnade.configs import list_configs
from colonnade.models.half_precision import half_type, name_of_type
from colonnade.runtime.images import ImageError, num_frames
from colonnade.runtime.sanitize import one_line

from .coco_ids import Numbering, counted, numbering_of
from .drawing import check_opacity
from .inputs import Input, absolute, find_inputs
from .loading import CHECKPOINTS, check_types, device_of, load, make_fast
from .model import OVERLAP, WORKERS, Answer, Model
from .options import KINDS, PredictOptions
from .outputs import Outputs
from .resume_log import Records, check_new, records_of, write_images, write_results
from .test_pipeline import steps_for_arrays
from .tiling import tiles_of
from .video import open_video, predict_frames

THRESHOLD = 0.3  # unless an option says otherwise


@file_errors()
def complete(args: PredictOptions) -> list[Input]:
    """Check the options, tell the checkpoint from the inputs, and find these.

    Args:
        args: Of ``tools/predict.py``; changed.

    Raises:
        OSError: If an input leads to nothing, or the folder to write is taken.
        ValueError: If the options do not go together.
    """
    for option in ('batch_size', 'every', 'limit'):
        if (value := vars(args)[option]) is not None and value < 1:
            raise UserError(f'--{option.replace("_", "-")} must be at least 1, got {value}')
    if args.tile is None and args.overlap is not None:
        raise UserError('--overlap is of tiles: it needs --tile')
    if args.tile is not None:
        args.overlap = OVERLAP if args.overlap is None else args.overlap
        tiles_of((1, 1), args.tile, args.overlap)
    if args.threshold is not None and not 0 <= args.threshold <= 1:
        raise UserError(f'--threshold is from 0 to 1, got {args.threshold}')
    check_opacity(args.opacity)
    if args.config.is_dir() or args.config.suffix in CHECKPOINTS:  # and its weights
        if args.checkpoint in list_configs() or args.checkpoint.endswith('.py'):
            raise UserError(f'{args.checkpoint} is a config: name it first')
        if Path(args.checkpoint).suffix in CHECKPOINTS:
            raise UserError(f'{args.config} has weights of its own: leave out {args.checkpoint}')
        args.inputs = [args.checkpoint, *args.inputs]
        args.checkpoint = None
    check_types(args.config, args.checkpoint)
    if not args.inputs:
        raise UserError(f'no INPUT behind {args.config} {args.checkpoint}: name images')
    check_new(args.out, resume=args.resume)
    inputs = find_inputs(args.inputs, args.out)[:args.limit]
    if args.every is not None and not any(item.is_video for item in inputs):
        raise UserError('--every is of videos, and there are none')
    if args.annotations is not None and not args.annotations.is_file():
        raise MissingFileError(f'--annotations: no file {args.annotations}')
    if args.annotations is not None and any(item.is_video for item in inputs):
        raise UserError('--annotations is of images, and there are videos')
    return inputs


def run(args: PredictOptions, inputs: Sequence[Input]) -> list[str]:
    """Load the model, predict what is not predicted yet, and write lists of all results.

    Args:
        args: Completed.
        inputs: All of them.

    Returns:
        A sentence for each input that could not be read.

    Raises:
        OSError: If files cannot be read or written.
        ValueError: If model, options and folder do not go together, or memory is too small.
    """
    dtype = half_type(args.amp, device_of(args.device).type)
    model = load(
        args.config,
        args.checkpoint,
        device=args.device,
        cfg_options=args.cfg_options,
        trust=args.trust)
    print(model)
    settle(args, model)
    numbering = numbered(args, inputs, model)
    settings = settings_of(args, model)  # with a hash of weights that are not fused yet
    settings.update(fuse=make_fast(model, args.fuse, dtype), amp=name_of_type(dtype))
    with records_of(args.out, settings, resume=args.resume) as records:
        with explain_resource_errors(args.out, model.device):
            return predict_and_list(args, model, inputs, numbering, records)


def predict_and_list(args: PredictOptions, model: Model, inputs: Sequence[Input],
                     numbering: Numbering, records: Records) -> list[str]:
    """Predict what is not finished, and write lists of all results and errors.

    Returns:
        A sentence for each input that could not be read.

    Raises:
        OSError: If files cannot be written.
    """
    errors = predict(args, model, inputs, numbering, records)
    with file_errors():
        write_images(records, numbering, categories_of(model, numbering))
        if 'results' in args.outputs:
            write_results(records, numbering)
        write_errors(args.out / 'errors.txt', errors)
    return errors


@contextmanager
def explain_resource_errors(folder: Path, device: torch.device) -> Iterator[None]:
    """Context manager that says what to do if memory or disk is full."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise UserError(f'the memory of {device} is full: set a smaller --batch-size, or --tile '
                        'for large images') from error
    except FileError as error:
        if error.filename is not None:
            raise
        raise FileError(f'{folder} cannot be written: {error}. --resume goes on when it can') \
            from error


def settle(args: PredictOptions, model: Model) -> None:
    """Fill in the options that depend on the kind of model.

    Args:
        args: Completed; changed.
        model: That was loaded.

    Raises:
        ValueError: If an option is of another kind of model.
    """
    is_segmenter = model.kind == 'labels'
    of_others = dict(
        threshold='a detector', annotations='a detector') if is_segmenter else dict(
            first_label='a segmenter')
    for option, kind in of_others.items():
        if vars(args)[option] is not None:
            raise UserError(f'--{option.replace("_", "-")} is of {kind}, and the model is none')
    if not is_segmenter and 'labels' in (args.outputs or ()):
        raise UserError('--outputs labels is of a segmenter, and the model is none')
    args.labels_of_frames = 'labels' in (args.outputs or ())  # many files: only if asked for
    args.outputs = args.outputs or (KINDS if is_segmenter else KINDS[:2])
    args.threshold = THRESHOLD if args.threshold is None else args.threshold
    args.first_label = args.first_label or 0
    if not 0 <= args.first_label <= 65536 - len(model.classes):
        raise UserError(f'--first-label is from 0 on, with labels below 65536, got '
                        f'{args.first_label}')
    args.every = args.every or 1


def numbered(args: PredictOptions, inputs: Sequence[Input], model: Model) -> Numbering:
    """The ids of inputs and classes.

    Raises:
        OSError: If ``--annotations`` cannot be read.
        ValueError: If it lacks an input or a class.
    """
    if args.annotations is not None:
        return numbering_of(args.annotations, inputs, model.classes)
    return counted(inputs, model.classes, args.first_label or 0 if model.kind == 'labels' else 1)


def settings_of(args: PredictOptions, model: Model) -> dict[str, Any]:
    """What predictions depend on, by the names of options, but for how they are computed."""
    chosen = ('outputs', 'threshold', 'opacity', 'first_label', 'tile', 'overlap', 'every')
    return dict(
        hash_of_model=fingerprint(model),
        inputs=[str(absolute(text)) for text in args.inputs],
        annotations=args.annotations and str(absolute(str(args.annotations))),
        **{option: vars(args)[option]
           for option in chosen})


def fingerprint(model: Model) -> str:
    """A hash of a model's config, test pipeline, classes and weights."""
    steps = steps_for_arrays(model.cfg)
    about = (model.cfg.model.to_dict(), steps, model.classes, model.palette)
    digest = sha256(repr(about).encode())
    for name, value in model.module.state_dict().items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:32]


def predict(args: PredictOptions, model: Model, inputs: Sequence[Input], numbering: Numbering,
            records: Records) -> list[str]:
    """Predict what is not finished: images first, then one video after the other.

    Returns:
        A sentence for each input that could not be read.

    Raises:
        OSError: If files cannot be written.
    """
    remaining = [item for item in inputs if item.name not in records.names]
    if len(remaining) < len(inputs):
        print(f'{len(inputs) - len(remaining)} of {len(inputs)} are finished')
    assert args.threshold is not None and args.every is not None  # see settle
    outputs = Outputs(args.out, args.outputs, numbering.categories, args.threshold, args.opacity)
    options: dict[str, Any] = dict(batch_size=args.batch_size)
    if args.tile is not None:
        options.update(tile=args.tile, overlap=args.overlap)
    images = [item for item in remaining if not item.is_video]
    errors = predict_images(model, images, outputs, records, options)
    if not args.labels_of_frames:
        outputs = replace(outputs, kinds=[kind for kind in outputs.kinds if kind != 'labels'])
    for item in remaining:
        if item.is_video:
            errors += predict_video(model, item, args.every, outputs, records, options)
    return errors


def predict_images(model: Model, images: Sequence[Input], outputs: Outputs, records: Records,
                   options: dict[str, Any]) -> list[str]:
    """Predict images, drawing and writing beside it; returns what could not be read."""

    def write(found: tuple[Input, Answer]) -> tuple[Answer, dict[str, Any] | None]:
        item, answer = found
        with file_errors():
            return answer, outputs.write(item, answer)

    errors: list[str] = []
    answers = zip(images, model.answers([item.path for item in images], **options), strict=True)
    written = prefetch_map(write, answers, workers=WORKERS, ahead=WORKERS)
    with Progress('images', len(images)) as progress:
        for done, (answer, record) in enumerate(written, 1):
            if record is None:
                if not errors:  # the others are probably the same
                    print_traceback(answer.error)
                errors.append(str(answer.error))
                progress.note(f'skipped: {answer.error}')
            else:
                with file_errors():
                    records.add(record)
                if (number := num_frames(answer.source)) > 1:
                    progress.note(f'{answer.source}: the first of {number} frames')
            progress(done)
    return errors


def predict_video(model: Model, item: Input, every: int, outputs: Outputs, records: Records,
                  options: dict[str, Any]) -> list[str]:
    """Predict a video; returns why it could not be read, if so."""
    try:
        video = open_video(item.path, every)
        with Progress(item.name, len(video)) as progress:
            record = predict_frames(model, item, video, outputs, report=progress, **options)
            with file_errors():
                records.add(record)
    except ImageError as error:
        print_traceback(error)
        print(f'skipped: {one_line(error)}', file=sys.stderr, flush=True)
        return [str(error)]
    return []


def categories_of(model: Model, numbering: Numbering) -> list[dict[str, Any]]:
    """The classes of a model as COCO lists categories."""
    return [
        dict(id=number, name=name, color=list(colour)) for number, name, colour in zip(
            numbering.categories, model.classes, model.palette, strict=True)
    ]


def write_errors(path: Path, errors: Sequence[str]) -> None:
    """Write what could not be read, a line each; no file if that is nothing."""
    if not errors:
        path.unlink(missing_ok=True)
        return
    with atomic_write(path) as scratch:
        lines = [f'{one_line(error)}\n' for error in errors]
        scratch.write_bytes(os.fsencode(''.join(lines)))  # names in any encoding
