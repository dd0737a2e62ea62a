"""Parameters, gradients and optimizer states shared out over processes (FSDP, arXiv 2304.11277).

By torch's ``fully_shard``: the model stays what it is, and its parameters keep names and shapes.
"""
from __future__ import annotations

import inspect
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.device import get_device
from mmengine.dist import all_gather_object, get_rank, get_world_size, is_main_process
from mmengine.fileio import join_path
from mmengine.model import convert_sync_batchnorm
from mmengine.registry import RUNNERS
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from colonnade.common.atomic_files import UNFINISHED, replace_folder
from colonnade.common.distributed import raise_on_all_ranks
from colonnade.common.errors import FileError, UserError, file_errors
from colonnade.common.hashing import sha256_of
from colonnade.weights.checkpoint_files import (CheckpointError, arguments_of_whole_files,
                                                keep_sums, reason)
from colonnade.weights.mmengine_loaders import strip_code
from colonnade.weights.sharded_files import (REST, SHAPES, is_sharded, mapped, read_folder,
                                             shards_of, write_shards)
from colonnade.weights.state_dicts import State, with_prefix

from ..runner.strict_runner import StrictRunner
from .sharded_tensors import (keep_shards, keep_whole, like, require_unused, shard_model, whole,
                              with_a_dimension)

#: parts of a checkpoint that have shards
SHARDED = ('state_dict', 'ema_state_dict', 'optimizer')
#: arguments of mmengine's saving that say where to
PLACES = ('file_client_args', 'backend_args')


def shard(cfg: Config, sharded_checkpoints: bool = False) -> None:
    """Let ``cfg`` train with parameters that are shared out over the processes.

    Args:
        cfg: Changed in place.
        sharded_checkpoints: Each process writes what it keeps, into one folder.

    Raises:
        ValueError: If shards would be written where there is no file system.
    """
    cfg.runner_type = ShardedRunner.__name__
    cfg.sharded_checkpoints = sharded_checkpoints
    out_dir = str(((cfg.get('default_hooks') or {}).get('checkpoint') or {}).get('out_dir') or '')
    if sharded_checkpoints and '://' in out_dir:
        raise UserError('--checkpoints sharded needs a folder that all processes see, and '
                        f'default_hooks.checkpoint.out_dir is {out_dir}')


@RUNNERS.register_module()
class ShardedRunner(StrictRunner):
    """A runner whose processes keep a part of parameters, gradients and optimizer states each.

    Checkpoints are whole, as those of other runs, or with ``sharded_checkpoints`` folders; the best
    ones are always whole. Both load under any number of processes. For an evaluation each process
    gathers all parameters, since processes may have different numbers of images.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.folder: Path | None = None  # where shards are written at the moment
        self.num_bytes = 0  # of all shards together
        self.shard_of: Callable[[str], Tensor | None] = lambda path: None
        self.scalars: list[str] = []  # parameters that had no dimension before
        super().__init__(*args, **kwargs)

    def wrap_model(self, model_wrapper_cfg: dict | None, model: nn.Module) -> nn.Module:
        """The model itself, with batch norms over all processes where ``sync_bn`` says so.

        Raises:
            ValueError: If no launcher has made a group of processes, or this torch cannot do it.
        """
        if not self.distributed:
            raise UserError('--fsdp needs a launcher: start it with torchrun, one process or '
                            'more, and say --launcher pytorch')
        require_unused(bool(self.cfg.get('find_unused_parameters')))
        model = model.to(get_device())
        sync_bn = self.cfg.get('sync_bn')
        return convert_sync_batchnorm(model, sync_bn) if sync_bn else model

    def train(self) -> nn.Module:
        """As mmengine's; weights are initialised while they are whole."""
        super()._init_model_weights()
        self.scalars = with_a_dimension(self.model)
        shard_model(self.model, init_device_mesh(get_device(), (get_world_size(), )))
        if self.cfg.get('find_unused_parameters'):
            self.model.set_reduce_scatter_unused_params(True)
        return super().train()

    def _init_model_weights(self) -> None:
        """Nothing: they are."""

    def call_hook(self, fn_name: str, **kwargs: Any) -> None:
        """As mmengine's; hooks see shards, an evaluation whole parameters, files what they take."""
        if fn_name in ('after_val_epoch', 'after_test_epoch'):
            keep_shards(self.model)
        if fn_name == 'before_save_checkpoint':
            with raise_on_all_ranks():  # before processes wait for each other's shards
                super().call_hook(fn_name, **kwargs)
            self._take_shards(kwargs['checkpoint'])
            return
        super().call_hook(fn_name, **kwargs)
        if fn_name in ('before_val_epoch', 'before_test_epoch'):
            keep_whole(self.model)

    def load_checkpoint(self, filename: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """As without shards; of whole tensors, each process takes its part."""
        shards = self._shards()
        self.shard_of = lambda path: shards.get(path, shards.get(path.rpartition('/')[0]))
        return super().load_checkpoint(filename, *args, **kwargs)

    def _shards(self) -> dict[str, Tensor]:
        """What is sharded, by its path in a checkpoint; of optimizer states, the parameter's."""
        found = self._paths(self.model.state_dict(), self._trained())
        return {path: tensor for path, tensor in found.items() if isinstance(tensor, DTensor)}

    def _trained(self) -> list[Tensor]:
        """Parameters in the order of the optimizer's states."""
        groups = self.optim_wrapper.optimizer.param_groups
        return [parameter for group in groups for parameter in group['params']]

    def _paths(self, named: State, trained: Iterable[Tensor]) -> dict[str, Tensor]:
        """Tensors by the path in a checkpoint of what belongs to them."""
        indices = {id(parameter): index for index, parameter in enumerate(self._trained())}
        return {
            **with_prefix(named, 'state_dict/'),
            **with_prefix(named, 'ema_state_dict/module.'),
            **{
                f'optimizer/state/{indices[id(parameter)]}': parameter
                for parameter in trained
            }
        }

    def _is_scalar(self) -> Callable[[str, Any], bool]:
        """Asks of a path and what is there whether that is a number of a parameter's shape."""
        named = {name: self.model.get_parameter(name) for name in self.scalars}
        ids = set(map(id, named.values()))
        paths = self._paths(named, [p for p in self._trained() if id(p) in ids])

        def is_scalar(path: str, value: Any) -> bool:
            parent, _, own = path.rpartition('/')
            of_parameter = path in paths or parent in paths and own != 'step'  # AdamW's, not shared
            return isinstance(value, Tensor) and of_parameter

        return is_scalar

    def read(self, filename: str) -> dict[str, Any]:
        """As without shards; of a folder, each process reads its part alone."""
        if self.adapt is not None or not is_sharded(filename):
            return super().read(filename)
        return strip_code(read_folder(filename, place_of=self.shard_of))

    def place(self, checkpoint: dict[str, Any]) -> dict[str, Any]:
        """A checkpoint with this process' part of what is sharded."""

        is_scalar = self._is_scalar()

        def part(path: str, value: Any) -> Any:
            shard = self.shard_of(path)
            if not isinstance(value, Tensor) or shard is None:
                return value
            return like(value.reshape(1) if is_scalar(path, value) else value, shard)

        return checkpoint | {
            name: mapped(checkpoint[name], part, name)
            for name in SHARDED if name in checkpoint
        }

    def own_state(self) -> State:
        """The model's tensors, gathered."""
        return {name: whole(value, True) for name, value in super().own_state().items()}

    def save_checkpoint(self,
                        out_dir: str,
                        filename: str,
                        *args: Any,
                        save_optimizer: bool = True,
                        **kwargs: Any) -> None:
        """As mmengine's, by all processes; whole if it holds no state of training.

        Raises:
            CheckpointError: If it cannot be written, in all processes.
        """
        kwargs['save_optimizer'] = save_optimizer
        path = join_path(out_dir, filename)
        if not self.cfg.get('sharded_checkpoints') or not save_optimizer:
            with raise_on_all_ranks():
                self._write(path, *args, **kwargs)
            return
        try:
            with shared_folder(Path(path)) as self.folder:
                self._write(str(self.folder / REST), **kwargs)
        except FileError as error:
            text = reason(Path(path), self.num_bytes, error)
            raise CheckpointError(error.errno, text) from error
        finally:
            self.folder = None

    def _write(self, path: str, *args: Any, **kwargs: Any) -> None:
        """mmengine's, which is of the first process alone: the others take part, and write nothing.
        """
        folder, name = os.path.split(path)
        if is_main_process():
            kwargs = arguments_of_whole_files(folder, *args, **kwargs)
        else:
            folder, name = os.path.split(os.devnull)
            args, kwargs = (), {key: value for key, value in kwargs.items() if key not in PLACES}
        inspect.unwrap(Runner.save_checkpoint)(self, folder, name, *args, **kwargs)

    def _take_shards(self, checkpoint: dict[str, Any]) -> None:
        """Gather what a checkpoint holds of shards, or write it to the folder."""
        is_scalar, shards = self._is_scalar(), dict[str, Tensor]()

        def taken(path: str, value: Any) -> Any:
            if is_scalar(path, value):
                return whole(value, True).reshape(())
            if self.folder is None or not isinstance(value, DTensor):
                return whole(value)
            shards[path] = value

        for name in SHARDED:
            if name in checkpoint:
                checkpoint[name] = mapped(checkpoint[name], taken, name)
        if self.folder is None:
            return
        self.num_bytes = sum(value.numel() * value.element_size() for value in shards.values())
        checkpoint[SHAPES] = {path: list(value.shape) for path, value in shards.items()}
        with file_errors():
            write_shards(self.folder, shards)


@contextmanager
def shared_folder(path: Path) -> Iterator[Path]:
    """A folder that all processes fill, and that takes the place of ``path`` when it is whole.

    Raises:
        FileError: If it cannot be written, in all processes. Nothing of it remains then.
    """
    scratch = path.with_name(f'{UNFINISHED}{path.name}')
    try:
        with raise_on_all_ranks(), file_errors():
            if is_main_process():
                shutil.rmtree(scratch, ignore_errors=True)
                scratch.mkdir(parents=True)
        with raise_on_all_ranks():
            yield scratch
        with raise_on_all_ranks(), file_errors():
            sums = {file.name: sha256_of(file) for file in shards_of(scratch, get_rank())}
            for other in all_gather_object(sums):
                sums.update(other)
            if is_main_process():
                keep_sums(scratch, sums)
                replace_folder(scratch, path)
    finally:
        if is_main_process():
            shutil.rmtree(scratch, ignore_errors=True)
