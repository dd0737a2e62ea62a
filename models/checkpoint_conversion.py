"""Published weights of any known layout, written as ours."""
from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError

from colonnade.backbones import ColumnarBackbone
from colonnade.backbones.kernels.without_memory import without_memory
from colonnade.backbones.registry import infer_backbone
from colonnade.common.atomic_files import atomic_write, check_writable
from colonnade.common.errors import FileError, UserError
from colonnade.weights.downloads import fetch
from colonnade.weights.layouts import remap
from colonnade.weights.loading import Plan, plan_loading
from colonnade.weights.state_dicts import State, WeightsError, state_dict_of, without_prefix


def build_backbone(state: State, source: str) -> ColumnarBackbone:
    """The backbone that a state dict under our names was made for, without memory for its weights.

    Raises:
        WeightsError: If the state dict does not show it.
    """
    try:
        of_backbone = without_prefix(state, 'backbone.') or state
        backbone, _ = infer_backbone(of_backbone)
        with without_memory():
            return backbone(**backbone.arguments_for(of_backbone))
    except (LookupError, ValueError) as error:
        raise WeightsError(f'{source} shows no backbone that could be built: {error}') from error


def plan_conversion(checkpoint: dict[str, Any], source: str) -> Plan:
    """What of a checkpoint is kept, under which names: the backbone strictly, all else as it is.

    Raises:
        WeightsError: If its layout is not known, or its backbone is not whole.
    """
    original = state_dict_of(checkpoint, source)
    _, state = remap(original, source)
    plan = plan_loading(build_backbone(state, source), checkpoint, source)
    if not without_prefix(state, 'backbone.'):
        return plan
    renamed = tuple(key for key in state if key not in original)
    return replace(plan, state=state, renamed=renamed, dropped=())


def report(plan: Plan, checkpoint: dict[str, Any]) -> str:
    """A line for each tensor: what became of it, its name (before -> now) and shape."""
    original = state_dict_of(checkpoint, plan.source)
    old_names = {(value.data_ptr(), value.numel()): key for key, value in original.items()}
    lines = []
    for key, value in plan.state.items():
        fate, name = 'kept', key
        if key in plan.renamed:
            old = old_names.get((value.data_ptr(), value.numel()), 'part of another')
            fate, name = 'renamed', f'{old} -> {key}'
        elif key in plan.resized:
            fate = 'resized'
        lines.append(f'{fate:8} {name} {tuple(value.shape)}')
    return '\n'.join([*lines, *(f'{"dropped":8} {key}' for key in plan.dropped), str(plan)])


def write(plan: Plan, meta: dict[str, Any], out: Path) -> None:
    """Write a converted file atomically."""
    with atomic_write(out) as scratch:
        try:
            if out.suffix == '.safetensors':
                safetensors.torch.save_file({
                    k: v.contiguous()
                    for k, v in plan.state.items()
                }, scratch)
            else:
                torch.save(dict(meta=meta, state_dict=plan.state), scratch)
        except (RuntimeError, SafetensorError) as error:  # so torch and safetensors say it
            raise FileError(f'{out} cannot be written, is the disk full? {error}') from error


def convert(source: str,
            out: Path,
            *,
            in_full: bool = False,
            dry_run: bool = False,
            overwrite: bool = False,
            trust: bool = False) -> None:
    """Convert a file and print what became of its tensors.

    Args:
        source: File, URL or ``timm://NAME``.
        out: ``.pth`` or ``.safetensors``.
        in_full: Print a line for each tensor.
        dry_run: Write nothing.
        overwrite: Whether ``out`` may exist.
        trust: Run what is pickled in the file.

    Raises:
        OSError: If a file is missing or cannot be written, or ``out`` exists.
        ValueError: If ``out`` has another ending, or the weights cannot be read or recognised.
    """
    if out.suffix not in ('.pth', '.safetensors'):
        raise UserError(f'OUT must end in .pth or .safetensors, got {out}')
    if out.exists() and not (overwrite or dry_run):
        raise UserError(f'{out} exists: name another file, or say --force')
    if not dry_run:
        check_writable(out)
    checkpoint = fetch(source, trust=trust)
    plan = plan_conversion(checkpoint, source)
    print(report(plan, checkpoint) if in_full else plan)
    if not dry_run:
        write(plan, checkpoint.get('meta', {}), out)
