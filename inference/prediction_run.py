"""The command ``colonnade predict``, from its options to a folder of predictions."""
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
from colonnade.models.half_precision import get_half_type, get_type_name
from colonnade.runtime.images import ImageError, num_frames
from colonnade.runtime.sanitize import one_line

from .arrays import get_array_steps
from .drawing import check_opacity
from .inputs import Input, find_inputs, resolve_path
from .loading import CHECKPOINTS, check_model_paths, get_torch_device, load, optimize_model
from .model import NUM_WORKERS, TILE_OVERLAP, Model, Prediction
from .options import OUTPUTS, PredictOptions
from .outputs import (CocoIds, OutputWriter, count_ids, find_ids, write_images_json,
                      write_panoptic_json, write_results_json)
from .resume_log import ResumeLog, check_output_folder, open_resume_log
from .tiling import compute_tiles
from .video import open_video, predict_frames

THRESHOLD = 0.3
TASKS = dict(masks='detector', boxes='detector', labels='segmenter', panoptic='panoptic model')
#: options that have no effect on some kinds of models, and those on which they have one
KINDS = dict(
    threshold=('masks', 'boxes'),
    ids_from=('masks', 'boxes', 'panoptic'),
    label_offset=('labels', ),
    tile_size=('masks', 'boxes', 'labels'))


@file_errors()
def resolve_inputs(args: PredictOptions) -> list[Input]:
    """Check the options and find the inputs.

    If CONFIG contains weights, CHECKPOINT is the first input, and the options are modified.
    """
    for option in ('batch_size', 'frame_step', 'max_inputs'):
        if (value := vars(args)[option]) is not None and value < 1:
            raise UserError(f'--{option.replace("_", "-")} must be at least 1, got {value}')
    if args.tile_size is None and args.tile_overlap is not None:
        raise UserError('--tile-overlap has no effect without --tile-size')
    if args.tile_size is not None:
        args.tile_overlap = TILE_OVERLAP if args.tile_overlap is None else args.tile_overlap
        compute_tiles((1, 1), args.tile_size, args.tile_overlap)  # raises if out of range
    if args.threshold is not None and not 0 <= args.threshold <= 1:
        raise UserError(f'--threshold must be between 0 and 1, got {args.threshold}')
    check_opacity(args.opacity)
    if args.config.is_dir() or args.config.suffix in CHECKPOINTS:  # contains its weights
        if args.checkpoint is None:
            raise UserError(f'no INPUT after {args.config}: pass images or videos')
        if args.checkpoint in list_configs() or args.checkpoint.endswith('.py'):
            raise UserError(f'{args.checkpoint} is a config: pass it as the first argument')
        if Path(args.checkpoint).suffix in CHECKPOINTS:  # a work dir has several
            raise UserError(f'{args.config} already contains weights: remove {args.checkpoint}')
        args.inputs = [args.checkpoint, *args.inputs]
        args.checkpoint = None
    check_model_paths(args.config, args.checkpoint)
    if args.checkpoint is None and not args.inputs:
        raise UserError(f'no CHECKPOINT and no INPUT after {args.config}: pass the file of a '
                        'trained model, and images or videos')
    if not args.inputs:
        raise UserError(f'no INPUT after {args.config} {args.checkpoint}: pass images or videos')
    check_output_folder(args.out, resume=args.resume)
    inputs = find_inputs(args.inputs, args.out)
    # Bands in files of their own are counted as one image later, and are no videos.
    has_videos = any(item.is_video for item in inputs[:args.max_inputs])
    if args.frame_step is not None and not has_videos:
        raise UserError('--frame-step applies only to videos, but there are none')
    if args.ids_from is not None and not args.ids_from.is_file():
        raise MissingFileError(f'--ids-from: no such file: {args.ids_from}')
    if args.ids_from is not None and has_videos:
        raise UserError('--ids-from applies only to images, but some inputs are videos')
    return inputs


def run(args: PredictOptions, inputs: Sequence[Input]) -> list[str]:
    """Load the model, run it on inputs that are not finished, and write lists of all results."""
    dtype = get_half_type(args.amp, get_torch_device(args.device).type)
    model = load(
        args.config,
        args.checkpoint,
        device=args.device,
        cfg_options=args.cfg_options,
        trust=args.trust)
    print(model)
    set_task_defaults(args, model)
    inputs = select_first_bands(inputs, model)[:args.max_inputs]
    ids = assign_ids(args, inputs, model)
    # The model is hashed before it is fused.
    settings: dict[str, Any] = dict(
        hash_of_model=hash_model(model),
        inputs=[str(resolve_path(text)) for text in args.inputs],
        ids_from=args.ids_from and str(resolve_path(str(args.ids_from))))
    for option in ('outputs', 'threshold', 'opacity', 'label_offset', 'tile_size', 'tile_overlap',
                   'frame_step'):
        settings[option] = vars(args)[option]
    settings.update(fuse=optimize_model(model, args.fuse, dtype), amp=get_type_name(dtype))
    with open_resume_log(args.out, settings, resume=args.resume) as log:
        with explain_resource_errors(args.out, model.device):
            return predict_and_list(args, model, inputs, ids, log)


def select_first_bands(inputs: Sequence[Input], model: Model) -> Sequence[Input]:
    """Return the inputs without further files of images that have one file per band."""
    if not model.bands or not model.bands.suffixes:
        return inputs
    first = model.bands.suffixes[0]
    if not (selected := [item for item in inputs if item.name.endswith(first)]):
        raise UserError(f'no input ends with {first}, the suffix of the first file of an image')
    return selected


def set_task_defaults(args: PredictOptions, model: Model) -> None:
    """Fill in the options whose defaults depend on the model."""
    is_segmenter = model.kind == 'labels'
    unused = {f'--{option.replace("_", "-")}': kinds for option, kinds in KINDS.items()
              if vars(args)[option] is not None and model.kind not in kinds}  # yapf: disable
    if not is_segmenter and 'labels' in (args.outputs or ()):
        unused['--outputs labels'] = ('labels', )
    for option, kinds in unused.items():
        tasks = ' and '.join(dict.fromkeys(f'{TASKS[kind]}s' for kind in kinds))
        raise UserError(f'{option} applies only to {tasks}, but the model is a '
                        f'{TASKS[model.kind]}')
    # Label maps of videos are many files, so they are written only on request.
    args.write_frame_labels = 'labels' in (args.outputs or ())
    args.outputs = args.outputs or (OUTPUTS if is_segmenter else OUTPUTS[:2])
    args.threshold = THRESHOLD if args.threshold is None else args.threshold
    args.label_offset = args.label_offset or 0
    if not 0 <= args.label_offset <= 65536 - len(model.classes):
        raise UserError('--label-offset must be at least 0 and keep labels below 65536, got '
                        f'{args.label_offset}')
    args.frame_step = args.frame_step or 1


def assign_ids(args: PredictOptions, inputs: Sequence[Input], model: Model) -> CocoIds:
    """Return IDs of inputs and classes, from ``--ids-from`` if it is set."""
    if args.ids_from is not None:
        return find_ids(args.ids_from, inputs, model.classes)
    return count_ids(inputs, model.classes, args.label_offset or 0 if model.kind == 'labels' else 1)


def hash_model(model: Model) -> str:
    """Return a hash of config, test pipeline, classes and weights."""
    settings = (model.cfg.model.to_dict(), get_array_steps(model.cfg), model.classes, model.palette)
    digest = sha256(repr(settings).encode())
    for name, value in model.module.state_dict().items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:32]


@contextmanager
def explain_resource_errors(folder: Path, device: torch.device) -> Iterator[None]:
    """Context manager that adds advice to errors of full memory or a full disk."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise UserError(f'out of memory on {device}: set a smaller --batch-size, or --tile-size '
                        'for large images') from error
    except FileError as error:
        if error.filename is not None:
            raise
        raise FileError(f'cannot write to {folder}: {error}. Pass --resume to continue once it is '
                        'writable') from error


def predict_and_list(args: PredictOptions, model: Model, inputs: Sequence[Input], ids: CocoIds,
                     log: ResumeLog) -> list[str]:
    """Predict unfinished inputs, then write lists of all results and errors; return the errors.

    Images are predicted first, then one video after the other.
    """
    remaining = [item for item in inputs if item.name not in log.names]
    if len(remaining) < len(inputs):
        print(f'{len(inputs) - len(remaining)} of {len(inputs)} inputs already have predictions')
    assert args.threshold is not None and args.frame_step is not None  # see set_task_defaults
    writer = OutputWriter(args.out, args.outputs, ids.categories, args.threshold, args.opacity)
    options: dict[str, Any] = dict(batch_size=args.batch_size)
    if args.tile_size is not None:
        options.update(tile=args.tile_size, overlap=args.tile_overlap)
    images = [item for item in remaining if not item.is_video]
    errors = predict_images(model, images, writer, log, options)
    if not args.write_frame_labels:
        writer = replace(writer, outputs=[name for name in writer.outputs if name != 'labels'])
    for item in (item for item in remaining if item.is_video):
        errors += predict_video(model, item, args.frame_step, writer, log, options)
    with file_errors():
        categories = [
            dict(id=category, name=name, color=list(color)) for category, name, color in zip(
                ids.categories, model.classes, model.palette, strict=True)
        ]
        if model.kind == 'panoptic':
            for index, category in enumerate(categories):
                category['isthing'] = int(index < model.num_things)
        write_images_json(args.out / 'images.json', log, ids, categories)
        if 'results' in args.outputs and model.kind == 'panoptic':
            write_panoptic_json(args.out / 'panoptic.json', log, ids, categories)
        elif 'results' in args.outputs:
            write_results_json(args.out / 'results.json', log, ids)
        if errors:
            with atomic_write(args.out / 'errors.txt') as scratch:
                lines = [f'{one_line(error)}\n' for error in errors]
                scratch.write_bytes(os.fsencode(''.join(lines)))  # Names can have any encoding.
        else:
            (args.out / 'errors.txt').unlink(missing_ok=True)
    return errors


def predict_images(model: Model, images: Sequence[Input], writer: OutputWriter, log: ResumeLog,
                   options: dict[str, Any]) -> list[str]:
    """Predict images, with drawing and writing in threads; return the errors."""

    def write(predicted: tuple[Input, Prediction]) -> tuple[Prediction, dict[str, Any] | None]:
        with file_errors():
            return predicted[1], writer.write(*predicted)

    errors: list[str] = []
    predictions = model.iter_predictions([item.path for item in images], **options)
    written = prefetch_map(
        write, zip(images, predictions, strict=True), workers=NUM_WORKERS, ahead=NUM_WORKERS)
    with Progress('images', len(images)) as progress:
        for done, (prediction, record) in enumerate(written, 1):
            if record is None:
                if not errors:  # Further tracebacks would probably be the same.
                    print_traceback(prediction.error)
                errors.append(str(prediction.error))
                progress.note(f'skipped: {prediction.error}')
            else:
                with file_errors():
                    log.add(record)
                assert prediction.result is not None  # because there is a record
                if 'visualizations' in writer.outputs and not writer.can_draw(prediction.result):
                    progress.note(f'{prediction.source}: too large for a visualization')
                if (frames := num_frames(prediction.source)) > 1:
                    progress.note(f'{prediction.source}: predicted only the first of {frames} '
                                  'frames')
            progress(done)
    return errors


def predict_video(model: Model, item: Input, frame_step: int, writer: OutputWriter, log: ResumeLog,
                  options: dict[str, Any]) -> list[str]:
    """Predict a video; return its error, if any."""
    try:
        video = open_video(item.path, frame_step)
        with Progress(item.name, len(video)) as progress:
            record = predict_frames(model, item, video, writer, report=progress, **options)
            with file_errors():
                log.add(record)
    except ImageError as error:
        print_traceback(error)
        print(f'skipped: {one_line(error)}', file=sys.stderr, flush=True)
        return [str(error)]
    return []
