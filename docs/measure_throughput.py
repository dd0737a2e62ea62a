"""Compare test and predict with mmdet's and mmseg's own, in images per second.

    python docs/measure_throughput.py mask_rcnn/xcit_small_12_p16_3x_coco ~/data/coco --images 10
    python docs/measure_throughput.py MINE.py DATA --checkpoint run/iter_500.pth --amp

All candidates run in turns in one process, on the CPU. Decoding, test pipeline, model, post-
processing, and metric or files count; loading the model does not. The baselines are mmengine's
runner and the inferencer of mmdet or mmseg with the same config. For them, `--amp` is autocast to
bfloat16 with float32 heads, since mmdet cannot draw bfloat16 boxes. Without a checkpoint, weights
are random, and RoI heads predict the maximum number of objects.
"""
from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from colonnade.configs import find_config
from colonnade.tools.command_line import report_user_errors

Call = Callable[[], float]  # seconds of a run
THEIRS = ('mmengine, test', 'inferencer')


def parse_args() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('config', type=Path, help='of a detector or segmenter')
    parser.add_argument('data', type=Path, help='folder in the layout of COCO or ADE20k')
    parser.add_argument('--checkpoint', type=Path)
    parser.add_argument('--images', type=int, default=10)
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--amp', action='store_true', help='in bfloat16')
    return parser.parse_args()


class Clock:
    """Seconds of a method, added up."""

    def __init__(self, owner: Any, *methods: str) -> None:
        self.seconds = 0.
        for method in methods:
            object.__setattr__(owner, method, self.timed(getattr(owner, method)))

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Process an item and count it."""

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - started

        return wrapper


def tester(args: argparse.Namespace, theirs: bool, folder: Path) -> tuple[Call, Clock]:
    """Time a test loop from the first image to the metric, and the model's share of it."""
    from mmengine.runner import Runner

    from colonnade.evaluation.testing import TestOptions, prepared_runner, testing_settings
    from colonnade.models.half_precision import keep_outputs_float32
    options = TestOptions(
        config=args.config,
        checkpoint=str(args.checkpoint),
        cfg_options={'test_dataloader.dataset.indices': args.images},
        data_root=args.data,
        work_dir=folder / ('their_test' if theirs else 'our_test'),
        amp=args.amp)
    if theirs:
        cfg = testing_settings(options).config
        cfg.test_evaluator.type = cfg.test_evaluator.type.replace('FasterCoco', 'Coco')
        runner = Runner.from_cfg(cfg)
    else:
        with prepared_runner(options) as runner:
            pass
    if args.amp and theirs:
        keep_outputs_float32(runner.model)
    runner.test()  # loads the weights, and warms up
    return seconds_of(runner.test_loop.run), Clock(runner.model, 'test_step')


def seconds_of(function: Callable[[], object]) -> Call:
    """Return a function that also returns its seconds."""

    def call() -> float:
        started = time.perf_counter()
        function()
        return time.perf_counter() - started

    return call


def their_predictor(args: argparse.Namespace, images: list[str],
                    folder: Path) -> tuple[Call, Clock]:
    """mmdet's or mmseg's inferencer, which writes pictures, and JSON or label maps."""
    from mmdet.apis import DetInferencer
    from mmseg.apis import MMSegInferencer

    from colonnade.models.half_precision import keep_outputs_float32
    from colonnade.settings.reading import read_config
    detects = read_config(args.config).default_scope == 'mmdet'
    inferencer = (DetInferencer if detects else MMSegInferencer)(
        str(args.config), str(args.checkpoint), device='cpu', show_progress=False)
    options = dict(no_save_pred=False) if detects else {}
    if args.amp:
        keep_outputs_float32(inferencer.model)
    call = seconds_of(lambda: inferencer(images, out_dir=str(folder / 'theirs'), **options))
    return call, Clock(inferencer, 'forward')


def our_predictor(args: argparse.Namespace, images: list[str], folder: Path) -> tuple[Call, Clock]:
    """Predict as tools/predict.py does once the model is loaded."""
    from colonnade.inference import load, prediction_run
    from colonnade.inference.inputs import find_inputs
    from colonnade.inference.options import PredictOptions
    from colonnade.inference.resume_log import open_resume_log
    model = load(args.config, str(args.checkpoint), device='cpu', fuse=None, amp=args.amp)

    def predict() -> None:
        out = Path(tempfile.mkdtemp(dir=folder))
        options = PredictOptions(args.config, str(args.checkpoint), out=out)
        prediction_run.set_task_defaults(options, model)
        inputs = find_inputs(images, out)
        numbering = prediction_run.assign_ids(options, inputs, model)
        with open_resume_log(out, {}, resume=False) as records:
            prediction_run.predict_and_list(options, model, inputs, numbering, records)

    return seconds_of(predict), Clock(model, 'run')


def write_random_weights(config: Path, path: Path) -> Path:
    """Write a checkpoint with the weights of :func:`build_random`."""
    import torch

    from colonnade.evaluation.benchmark.model_profile import build_random, raise_class_logits
    model = build_random(config)
    raise_class_logits(model)
    torch.save(dict(state_dict=model.state_dict(), meta={}), path)
    return path


def measure(args: argparse.Namespace, folder: Path) -> Iterator[str]:
    """Run all contestants in turns; lines with a row for each.

    Raises:
        ValueError: If there are too few images.
    """
    import torch

    from colonnade.settings.reading import read_config
    validation = 'val2017' if read_config(args.config).default_scope == 'mmdet' \
        else 'images/validation'
    images = sorted(map(str, (args.data / validation).glob('*.jpg')))[:args.images]
    if len(images) < args.images:
        raise ValueError(f'{args.data / validation} has {len(images)} images: set --images')
    args.checkpoint = args.checkpoint or write_random_weights(args.config, folder / 'random.pth')
    contestants = {
        'test.py': tester(args, False, folder),
        'mmengine, test': tester(args, True, folder),
        'predict.py': our_predictor(args, images, folder),
        'inferencer': their_predictor(args, images, folder),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    within: dict[str, list[float]] = {name: [] for name in contestants}
    for index in range(args.rounds + 1):
        for name, (call, clock) in contestants.items():
            clock.seconds = 0.
            with torch.autocast('cpu', torch.bfloat16, enabled=args.amp and name in THEIRS):
                whole = call()
            if index:  # the first warms up
                seconds[name].append(whole)
                within[name].append(clock.seconds / whole)
    yield f'{"":20} {"images/s":>8} {"s/image":>8} {"model":>6}'
    for name, values in seconds.items():
        middle = statistics.median(values)
        yield (f'{name:20} {args.images / middle:8.2f} {middle / args.images:8.3f} '
               f'{statistics.median(within[name]):6.0%}')


def main() -> None:
    """Measure in a folder that is removed."""
    args = parse_args()
    with report_user_errors('measure_throughput'), tempfile.TemporaryDirectory() as folder:
        args.config, args.data = find_config(args.config), args.data.expanduser().resolve()
        os.environ['MPLCONFIGDIR'] = folder
        logging.disable(logging.CRITICAL)  # runners and metrics tell much
        with redirect_stdout(StringIO()):
            rows = list(measure(args, Path(folder)))
        print(*rows, sep='\n')


if __name__ == '__main__':
    main()
