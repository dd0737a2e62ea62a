"""Fixtures: datasets and command lines."""
from __future__ import annotations

import faulthandler
import gc
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from zlib import crc32

import pytest
import torch
from hypothesis import HealthCheck, settings
from mmengine.logging import MMLogger
from torch.distributed import TCPStore
from torch.multiprocessing import ProcessExitedException, start_processes

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / 'shared'  # sample images and reference outputs, if they exist

#: import order: a room imports only itself and earlier rooms
ROOMS = ('runtime', 'common', 'configs', 'weights', 'backbones', 'necks', 'heads', 'settings',
         'datasets', 'models', 'engine', 'inference', 'export', 'evaluation', 'visualization',
         'recipes', 'api', 'tools')  # yapf: disable

# Options of runs in the process of the test, which forked workers would outlive.
NO_WORKERS = [f'{split}_dataloader.num_workers=0' for split in ('train', 'val', 'test')]
NO_VAL = ['val_dataloader=None', 'val_evaluator=None', 'val_cfg=None']
for variable in ('COLONNADE_COCO', 'COLONNADE_ADE', 'COLONNADE_SHAPES'):  # data roots of configs
    os.environ.pop(variable, None)
# Otherwise each process would measure which matmuls are faster, and results could differ.
os.environ.setdefault('COLONNADE_MATMUL', 'blas')
# Forked processes lack the OpenMP threads, and would wait for them forever.
os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))

# Background jobs of a shell ignore Ctrl-C, and child processes would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Start autograd before fake tensors register a fake GPU, after which it cannot be forked.
torch.ones(1, requires_grad=True).sum().backward()

# Use the same cases every time, on a machine under any load.
settings.register_profile('steady', derandomize=True, database=None, deadline=None,
                          suppress_health_check=[HealthCheck.too_slow])  # yapf: disable
settings.load_profile('steady')

COLLECTION = {'started': 0.}  # start of the current garbage collection


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add an option that divides the tests into parts, which stay the same between runs."""
    parser.addoption('--part', default='1/1', help='part of the tests to run, e.g. 3/8')


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the part of the tests, and skip those that need a GPU if there is none."""
    wanted = re.fullmatch(r'(\d+)/(\d+)', config.getoption('part'))
    part, parts = map(int, wanted.groups()) if wanted else (0, 1)
    if not 1 <= part <= parts:
        raise pytest.UsageError(f'--part must be K/N, such as 3/8, got {config.getoption("part")}')
    chosen = [item for item in items if crc32(item.nodeid.encode()) % parts == part - 1]
    config.hook.pytest_deselected(items=list(set(items) - set(chosen)))
    items[:] = chosen
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker('gpu'):
                item.add_marker(pytest.mark.skip(reason='no GPU'))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while tests are imported, which would take a quarter longer."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Freeze all imports, since mmengine collects garbage for every dataset."""
    gc.collect()
    gc.freeze()
    gc.callbacks.append(freeze_what_stays)


def freeze_what_stays(phase: str, info: dict[str, int]) -> None:
    """Freeze objects that tests leave, such as compiled graphs, once collection gets slow."""
    if phase == 'start':
        COLLECTION['started'] = time.perf_counter()
    elif info['generation'] == 2 and time.perf_counter() - COLLECTION['started'] > 0.05:
        gc.freeze()


def pytest_unconfigure() -> None:
    """Unfreeze objects before exit, since some libraries report them as leaks."""
    if freeze_what_stays in gc.callbacks:
        gc.callbacks.remove(freeze_what_stays)
    gc.unfreeze()


LAYOUTS = {'mask_rcnn': 'coco', 'sem_fpn': 'ade', 'upernet': 'ade'}  # head -> format of the dataset
SHORT = [  # options of runs with two iterations
    '--cfg-options', 'train_cfg.max_iters=2', 'train_cfg.val_interval=2',
    'default_hooks.checkpoint.interval=1', 'default_hooks.logger.interval=1',
    'train_dataloader.batch_size=2'
]
METRICS = {
    'mask_rcnn': ('coco/bbox_mAP', 'coco/segm_mAP', 'coco/bbox_mAP_50', 'coco/segm_mAP_50'),
    'sem_fpn': ('mIoU', 'mAcc', 'aAcc'),
    'upernet': ('mIoU', 'mAcc', 'aAcc'),
}


def config(head: str) -> Path:
    backbone = 'plain_vit_nano_12' if head.startswith('eomt') else 'xcit_nano_12_p16'
    return ROOT / 'configs' / head / f'{backbone}_slim_shapes.py'


def run_python(*arguments: str | Path, fail: bool = False, **environ: str) -> str:
    """Run Python in a new process, check whether it fails, and return its output."""
    done = subprocess.run([sys.executable, '-W', 'ignore', *map(str, arguments)],
                          env={
                              **os.environ,
                              **environ
                          },
                          cwd=ROOT,
                          stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT,
                          text=True)
    assert bool(done.returncode) == fail, done.stdout[-6000:]
    return done.stdout


LAUNCH = ('-m', 'torch.distributed.run', '--standalone', '--nproc-per-node', 2)  # torchrun
TWO_PROCESSES = dict(OMP_NUM_THREADS='1', CUDA_VISIBLE_DEVICES='')


def run_processes(number: int, script: str, *arguments: str | Path, out: Path) -> str:
    """Run a script in several processes on the CPU like torchrun, and return their output.

    They are forks of this one, whose imports they have. Where a GPU is, autograd cannot be forked,
    and torchrun starts them.
    """
    if torch.cuda.is_available():
        return run_python(*LAUNCH[:-1], number, script, *arguments, **TWO_PROCESSES)
    store = TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)
    logs = [out / f'process_{rank}.txt' for rank in range(number)]
    command = [script, *map(str, arguments)]
    end = time.monotonic() + 300
    with no_dump_of_forks():
        processes = start_processes(
            run_worker, (command, store.port, logs), nprocs=number, start_method='fork', join=False)
    try:
        while not processes.join(timeout=5):
            if time.monotonic() > end:
                raise TimeoutError(f'{command} hangs')
    except (ProcessExitedException, TimeoutError) as error:
        for process in processes.processes:
            process.kill()
        raise AssertionError('\n'.join(log.read_text()[-6000:] for log in logs)) from error
    return '\n'.join(log.read_text() for log in logs)


run_two = partial(run_processes, 2)


@contextmanager
def no_dump_of_forks() -> Iterator[None]:
    """Context manager for forking, which pauses the timer that dumps stacks."""
    faulthandler.cancel_dump_traceback_later()
    yield
    faulthandler.dump_traceback_later(600, exit=True, file=sys.__stderr__)  # as in setup.cfg


def run_worker(rank: int, command: list[str], port: int, logs: list[Path]) -> None:
    """Run the script in a process with the environment of torchrun."""
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(len(logs)),
        LOCAL_WORLD_SIZE=str(len(logs)),
        MASTER_ADDR='127.0.0.1',
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE='True')
    signal.signal(signal.SIGPIPE,
                  signal.SIG_IGN)  # Python's default, which commands that list change
    with logs[rank].open('w', buffering=1) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        sys.stdout = sys.stderr = log
        MMLogger._instance_dict.clear()  # loggers of the parent print to its streams
        sys.argv = command
        runpy.run_path(str(ROOT / command[0]), run_name='__main__')


latest_start = 0.


def second_of_its_own() -> float:
    """Return the start time of a run: now, or a second after the latest start."""
    global latest_start
    latest_start = max(time.time(), latest_start + 1)
    return latest_start


@pytest.fixture(autouse=True)
def rerun_small_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let training rerun layers of the small inputs of tests, as it does for large ones."""
    monkeypatch.setattr('colonnade.backbones.kernels.layers.MIN_RERUN', 0)


@pytest.fixture
def run_tool(monkeypatch: pytest.MonkeyPatch, no_layout: None,
             writes_pages: bool) -> Callable[..., None]:
    """See :func:`tool_runner`."""
    return tool_runner(monkeypatch, writes_pages)


@pytest.fixture
def writes_pages() -> bool:
    """Whether runs draw plots, which takes a quarter of a short run; tests may override it."""
    return False


@pytest.fixture
def no_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """See :func:`lay_nothing_out`."""
    lay_nothing_out(monkeypatch)


def lay_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip yapf formatting of configs, which mmengine does six times per run."""
    import_module('colonnade.settings.config_writer'
                  )  # imports the function before, so its configs are formatted
    monkeypatch.setattr('yapf.yapflib.yapf_api.FormatCode', lambda text, **_: (text, True))


def tool_runner(monkeypatch: pytest.MonkeyPatch, writes_pages: bool = True) -> Callable[..., None]:
    """Run a tool's command line in this process: ``run_tool('train', config, '--resume')``.

    mmengine tells runs of a process apart by the config's name and the second they start in. Runs
    of one name and second would share scope and log: each has a second of its own. mmengine formats
    a config with yapf six times a run, which takes half of a short run. Here it is left as it is.
    """
    clock = SimpleNamespace(**{**vars(time), 'time': second_of_its_own})
    monkeypatch.setattr('mmengine.runner.runner.time', clock)
    # An error of the report does not stop training, but must fail the test.
    recording = 'colonnade.visualization.run_report.recorder'
    monkeypatch.setattr(f'{recording}.RunRecord.strict', True)
    if not writes_pages:
        monkeypatch.setattr(f'{recording}.write_report', lambda *_, **__: None)

    def run(tool: str, *arguments: str | Path | int) -> None:
        monkeypatch.setattr(sys, 'argv', [tool, *map(str, arguments)])
        import_module(f'colonnade.tools.{tool}').main()

    return run


def latest_log(work_dir: Path) -> str:
    """Return the log of the latest run in a work dir."""
    return max(work_dir.glob('*/*.log')).read_text()


@pytest.fixture(scope='session')
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small dataset of synthetic shapes in both formats."""
    from colonnade.datasets.shapes_dataset import make_shapes
    out = tmp_path_factory.mktemp('data') / 'shapes'
    make_shapes(out, num_train=12, num_val=4, size=64, seed=0)
    return out


@pytest.fixture(scope='session')
def real_data() -> dict[str, Path]:
    """Real COCO and ADE20K images."""
    folders = {layout: SHARED / 'data' / layout for layout in ('coco', 'ade')}
    for folder in folders.values():
        if not folder.is_dir():
            pytest.skip(f'no sample images in {folder}')
    return folders


@pytest.fixture(scope='session')
def trained_once(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Work dir of a segmenter after two iterations; see ``trained``."""
    work_dir = tmp_path_factory.mktemp('trained') / 'run'
    with pytest.MonkeyPatch.context() as monkeypatch:
        lay_nothing_out(monkeypatch)
        tool_runner(monkeypatch)('train', config('sem_fpn'), '--data-root', shapes / 'ade',
                                 '--work-dir', work_dir, *SHORT, *NO_WORKERS)
    return work_dir


@pytest.fixture
def trained(trained_once: Path, tmp_path: Path) -> Path:
    """Copy of ``trained_once`` as ``tmp_path / 'run'``."""
    work_dir = shutil.copytree(trained_once, tmp_path / 'run')
    (work_dir / 'last_checkpoint').write_text(str(work_dir / 'iter_2.pth'))
    return work_dir
