"""Training with sharded parameters, gradients and optimizer states (FSDP, arXiv 2304.11277).

It uses torch's ``fully_shard``: modules and the names and shapes of parameters stay the same.
"""
from __future__ import annotations

import inspect
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.dist import all_gather_object, get_rank, get_world_size, is_main_process
from mmengine.fileio import join_path
from mmengine.model import convert_sync_batchnorm
from mmengine.registry import RUNNERS
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from colonnade.common.atomic_files import UNFINISHED, replace_folder
from colonnade.common.distributed import raise_on_all_ranks
from colonnade.common.errors import FileError, UserError, file_errors
from colonnade.common.hashing import compute_sha256
from colonnade.weights.checkpoint_files import (CheckpointError, add_checksums, explain_failure,
                                                get_save_options)
from colonnade.weights.mmengine_loaders import strip_code
from colonnade.weights.sharded_files import (REST, SHAPES, is_sharded, list_shards, map_values,
                                             read_folder, write_shards)
from colonnade.weights.state_dicts import State, add_prefix

from ..runner.strict_runner import StrictRunner
from .sharded_tensors import (gather_model, gather_tensor, reshape_scalars, reshard_model,
                              shard_like, shard_model)

#: sections of a checkpoint that are sharded
SHARDED = ('state_dict', 'ema_state_dict', 'optimizer')
#: arguments of mmengine's save_checkpoint about the file
FILE_ARGUMENTS = ('file_client_args', 'backend_args')


def enable_fsdp(cfg: Config, sharded_checkpoints: bool = False) -> None:
    """Make a config train with parameters that are sharded over the processes."""
    cfg.runner_type = ShardedRunner.__name__
    cfg.sharded_checkpoints = sharded_checkpoints
    out_dir = str(((cfg.get('default_hooks') or {}).get('checkpoint') or {}).get('out_dir') or '')
    if sharded_checkpoints and '://' in out_dir:
        raise UserError('--checkpoint-format sharded needs a folder that all processes share, got '
                        f'default_hooks.checkpoint.out_dir={out_dir}')


@RUNNERS.register_module()
class ShardedRunner(StrictRunner):
    """A runner whose processes keep one shard of parameters, gradients and optimizer states each.

    Checkpoints are full, as those of other runs, or folders with ``sharded_checkpoints``; best
    checkpoints are always full. Both load with any number of processes. For an evaluation, each
    process gathers all parameters, because processes may have different numbers of images.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.folder: Path | None = None  # folder to which shards are being written
        self.num_bytes = 0  # size of all shards together
        self.get_shard: Callable[[str], Tensor | None] = lambda path: None
        self.scalars: list[str] = []  # parameters that had no dimension before
        super().__init__(*args, **kwargs)

    def wrap_model(self, model_wrapper_cfg: dict | None, model: nn.Module) -> nn.Module:
        """Return the model itself, with synchronized batch norms if ``sync_bn`` is set."""
        if not self.distributed:
            raise UserError('--fsdp needs a launcher: start one or more processes with torchrun, '
                            'and pass --launcher pytorch')
        if self.cfg.get('find_unused_parameters') and \
                not hasattr(FSDPModule, 'set_reduce_scatter_unused_params'):
            raise UserError('--fsdp with find_unused_parameters=True needs torch 2.15, but this is '
                            f'{torch.__version__}')
        model = model.to(get_device())
        sync_bn = self.cfg.get('sync_bn')
        return convert_sync_batchnorm(model, sync_bn) if sync_bn else model

    def train(self) -> nn.Module:
        super()._init_model_weights()
        self.scalars = reshape_scalars(self.model)
        shard_model(self.model, init_device_mesh(get_device(), (get_world_size(), )))
        if self.cfg.get('find_unused_parameters'):
            self.model.set_reduce_scatter_unused_params(True)
        return super().train()

    def _init_model_weights(self) -> None:
        """Do nothing: weights are initialized in :meth:`train`."""

    def call_hook(self, fn_name: str, **kwargs: Any) -> None:
        """Call hooks with shards, but evaluate with full parameters."""
        if fn_name in ('after_val_epoch', 'after_test_epoch'):
            reshard_model(self.model)
        if fn_name == 'before_save_checkpoint':
            with raise_on_all_ranks():  # before processes wait for each other's shards
                super().call_hook(fn_name, **kwargs)
            self._collect_shards(kwargs['checkpoint'])
            return
        super().call_hook(fn_name, **kwargs)
        if fn_name in ('before_val_epoch', 'before_test_epoch'):
            gather_model(self.model)

    def load_checkpoint(self, filename: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Load a checkpoint; of full tensors, each process keeps its shard."""
        state = self._get_paths(self.model.state_dict(), self._get_trained())
        shards = {path: tensor for path, tensor in state.items() if isinstance(tensor, DTensor)}
        # Optimizer states have the path of their parameter and a name.
        self.get_shard = lambda path: shards.get(path, shards.get(path.rpartition('/')[0]))
        return super().load_checkpoint(filename, *args, **kwargs)

    def _get_trained(self) -> list[Tensor]:
        """Return the parameters in the order of the optimizer's states."""
        groups = self.optim_wrapper.optimizer.param_groups
        return [parameter for group in groups for parameter in group['params']]

    def _get_paths(self, named: State, trained: Iterable[Tensor]) -> dict[str, Tensor]:
        """Return tensors by the paths of everything in a checkpoint that has their shape."""
        indices = {id(parameter): index for index, parameter in enumerate(self._get_trained())}
        return {
            **add_prefix(named, 'state_dict/'),
            **add_prefix(named, 'ema_state_dict/module.'),
            **{f'optimizer/state/{indices[id(each)]}': each for each in trained},
        }  # yapf: disable

    def _find_scalars(self) -> Callable[[str, Any], bool]:
        """Return a predicate for values in a checkpoint that were reshaped from scalars."""
        named = {name: self.model.get_parameter(name) for name in self.scalars}
        ids = set(map(id, named.values()))
        paths = self._get_paths(named, [p for p in self._get_trained() if id(p) in ids])

        def is_scalar(path: str, value: Any) -> bool:
            parent, _, own = path.rpartition('/')
            has_shape = path in paths or parent in paths and own != 'step'  # AdamW's is a scalar
            return isinstance(value, Tensor) and has_shape

        return is_scalar

    def read(self, filename: str) -> dict[str, Any]:
        """Return the content of a checkpoint; of a folder, each process reads its shard only."""
        if self.adapt is not None or not is_sharded(filename):
            return super().read(filename)
        return strip_code(read_folder(filename, get_target=self.get_shard))

    def place(self, checkpoint: dict[str, Any]) -> dict[str, Any]:
        """Return a checkpoint with this process' shards."""
        is_scalar = self._find_scalars()

        def place(path: str, value: Any) -> Any:
            shard = self.get_shard(path)
            if not isinstance(value, Tensor) or shard is None:
                return value
            return shard_like(value.reshape(1) if is_scalar(path, value) else value, shard)

        return checkpoint | {
            name: map_values(checkpoint[name], place, name)
            for name in SHARDED if name in checkpoint
        }

    def own_state(self) -> State:
        """Return the gathered tensors of the model."""
        return {name: gather_tensor(value, True) for name, value in super().own_state().items()}

    def save_checkpoint(self, out_dir: str, filename: str, *args: Any,
                        save_optimizer: bool = True, **kwargs: Any) -> None:  # yapf: disable
        """Save a checkpoint in all processes; it is full if it has no training state."""
        kwargs['save_optimizer'] = save_optimizer
        path = join_path(out_dir, filename)
        if not self.cfg.get('sharded_checkpoints') or not save_optimizer:
            with raise_on_all_ranks():
                self._write(path, *args, **kwargs)
            return
        try:
            with create_shared_folder(Path(path)) as self.folder:
                self._write(str(self.folder / REST), **kwargs)
        except FileError as error:
            text = explain_failure(Path(path), self.num_bytes, error)
            raise CheckpointError(error.errno, text) from error
        finally:
            self.folder = None

    def _write(self, path: str, *args: Any, **kwargs: Any) -> None:
        """Call mmengine's method in all processes; only the first writes to the path."""
        folder, name = os.path.split(path)
        if is_main_process():
            kwargs = get_save_options(folder, *args, **kwargs)
        else:
            folder, name = os.path.split(os.devnull)
            args = ()
            kwargs = {key: value for key, value in kwargs.items() if key not in FILE_ARGUMENTS}
        inspect.unwrap(Runner.save_checkpoint)(self, folder, name, *args, **kwargs)

    def _collect_shards(self, checkpoint: dict[str, Any]) -> None:
        """Gather the shards of a checkpoint, or write them to the folder."""
        is_scalar, shards = self._find_scalars(), dict[str, Tensor]()

        def collect(path: str, value: Any) -> Any:
            if is_scalar(path, value):
                return gather_tensor(value, True).reshape(())
            if self.folder is None or not isinstance(value, DTensor):
                return gather_tensor(value)
            shards[path] = value

        for name in SHARDED:
            if name in checkpoint:
                checkpoint[name] = map_values(checkpoint[name], collect, name)
        if self.folder is None:
            return
        self.num_bytes = sum(value.numel() * value.element_size() for value in shards.values())
        checkpoint[SHAPES] = {path: list(value.shape) for path, value in shards.items()}
        with file_errors():
            write_shards(self.folder, shards)


@contextmanager
def create_shared_folder(path: Path) -> Iterator[Path]:
    """Context manager that yields a folder for all processes to fill, and renames it to ``path``.

    Raises:
        FileError: If it cannot be written, in all processes. It is removed then.
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
            sums = {file.name: compute_sha256(file) for file in list_shards(scratch, get_rank())}
            for other in all_gather_object(sums):
                sums.update(other)
            if is_main_process():
                add_checksums(scratch, sums)
                replace_folder(scratch, path)
    finally:
        if is_main_process():
            shutil.rmtree(scratch, ignore_errors=True)
