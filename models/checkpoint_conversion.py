"""Conversion of published weights of any known format to Colonnade's."""
from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError

import colonnade.heads  # noqa: F401  registers the formats of its files
from colonnade.backbones import ColumnarBackbone
from colonnade.backbones.input_channels import infer_channels
from colonnade.backbones.kernels.devices import on_meta_device
from colonnade.backbones.registry import infer_backbone
from colonnade.common.atomic_files import atomic_write, check_writable
from colonnade.common.errors import FileError, UserError
from colonnade.weights.downloads import fetch
from colonnade.weights.files import DATASET_META
from colonnade.weights.formats import convert_keys, detect_format, list_formats
from colonnade.weights.loading import Plan, plan_loading
from colonnade.weights.state_dicts import (State, WeightsError, get_omitted, get_state_dict,
                                           strip_prefix)

from .trained_weights import omit_base, restore_base


def print_formats() -> None:
    """Print the known formats, and what is dropped from files of each."""
    formats = list_formats()
    width = max(map(len, formats))
    for name, dropped in formats.items():
        print(f'{name:{width}}  {dropped and f"without {dropped}"}'.rstrip())


def build_backbone(state: State, source: str) -> ColumnarBackbone:
    """Build the backbone of a state dict under Colonnade's names on the meta device."""
    try:
        own = strip_prefix(state, 'backbone.') or state
        backbone, _ = infer_backbone(own)
        with on_meta_device():
            arguments = backbone.get_arguments_for(own)
            return backbone(in_channels=infer_channels(own), **arguments)
    except (LookupError, ValueError) as error:
        raise WeightsError(f'cannot build the backbone of {source}: {error}') from error


def plan_conversion(checkpoint: dict[str, Any], source: str) -> Plan:
    """Plan which tensors are kept under which names: the backbone strictly, all others unchanged.
    """
    original = get_state_dict(checkpoint, source)
    _, state = convert_keys(original, source)
    plan = plan_loading(build_backbone(state, source), checkpoint, source)
    if not strip_prefix(state, 'backbone.'):
        return plan
    renamed = tuple(key for key in state if key not in original)
    return replace(plan, state=state, renamed=renamed, dropped=())


def add_base(checkpoint: dict[str, Any], source: str, base: str, trust: bool) -> dict[str, Any]:
    """Return the checkpoint of the sums of a file of differences and the weights of ``base``."""
    state = get_state_dict(checkpoint, source)
    known = detect_format(state)
    if known is None or known.add_base is None:
        raise UserError(f'--base has no effect: {source} does not store its weights as '
                        'differences from a base model')
    try:
        total = known.add_base(get_state_dict(fetch(base, trust=trust), base), state)
    except WeightsError as error:
        raise WeightsError(f'--base {base}: {error}') from error
    return dict(meta=checkpoint.get('meta', {}), state_dict=total)


def format_plan(plan: Plan, checkpoint: dict[str, Any]) -> str:
    """Format a line for each tensor: kept, renamed, resized or dropped, names and shape."""
    original = get_state_dict(checkpoint, plan.source)
    old_names = {(value.data_ptr(), value.numel()): key for key, value in original.items()}
    lines = []
    for key, value in plan.state.items():
        action, name = 'kept', key
        if key in plan.renamed:
            old = old_names.get((value.data_ptr(), value.numel()), 'part of another')
            action, name = 'renamed', f'{old} -> {key}'
        elif key in plan.resized:
            action = 'resized'
        lines.append(f'{action:8} {name} {tuple(value.shape)}')
    return '\n'.join([*lines, *(f'{"dropped":8} {key}' for key in plan.dropped), str(plan)])


def to_list(values: Any) -> Any:
    """Convert arrays for JSON."""
    return values.tolist() if hasattr(values, 'tolist') else list(values)


def _write_file(state: State, meta: dict[str, Any], out: Path) -> None:
    """Write a converted file atomically."""
    with atomic_write(out) as scratch:
        try:
            if out.suffix == '.safetensors':
                tensors = {key: value.contiguous() for key, value in state.items()}
                text = {
                    DATASET_META: json.dumps(meta['dataset_meta'], default=to_list)
                } if meta.get('dataset_meta') else None
                Path(scratch).touch()
                mode = Path(scratch).stat().st_mode
                safetensors.torch.save_file(tensors, scratch, metadata=text)
                Path(scratch).chmod(mode)  # safetensors makes files private
            else:
                torch.save(dict(meta=meta, state_dict=state), scratch)
        except (RuntimeError, SafetensorError) as error:  # their errors of a full disk
            raise FileError(
                f'cannot write {out}, perhaps because the disk is full: {error}') from error


def convert(source: str,
            out: Path,
            *,
            base: str | None = None,
            trained_only: bool = False,
            in_full: bool = False,
            dry_run: bool = False,
            overwrite: bool = False,
            trust: bool = False) -> None:
    """Convert a file, and print what was done with its tensors.

    Args:
        source: File, URL or ``timm://NAME``.
        out: Path of a ``.pth`` or ``.safetensors`` file.
        base: File, URL or ``timm://NAME`` of the weights that ``source`` has differences to, or
            omits, or that ``trained_only`` omits.
        trained_only: Write only tensors that differ from those of ``base``.
        in_full: Print a line for each tensor.
        dry_run: Write nothing.
        overwrite: Overwrite ``out`` if it exists.
        trust: Run pickled code of the file.

    Raises:
        OSError: If a file is missing or cannot be written, or ``out`` exists.
        ValueError: If ``out`` has another suffix, or the weights cannot be read or identified.
    """
    if out.suffix not in ('.pth', '.safetensors'):
        raise UserError(f'OUT must end in .pth or .safetensors, got {out}')
    if out.exists() and not (overwrite or dry_run):
        raise UserError(
            f'{out} already exists: choose another file, or pass --force to overwrite it')
    if not dry_run:
        check_writable(out)
    checkpoint = fetch(source, trust=trust)
    omitted = get_omitted(checkpoint)
    if trained_only or omitted:
        if trained_only and omitted:
            raise UserError(f'{source} already omits its base model')
        if base is None:
            option = '--trained-only' if trained_only else f'{source}, which omits its base model,'
            raise UserError(f'{option} requires --base, the weights that training started from')
        change = omit_base if trained_only else restore_base
        checkpoint = change(checkpoint, source, base, trust)
        state = checkpoint['state_dict']
        if in_full:
            print('\n'.join(f'{"kept":8} {key} {tuple(value.shape)}'
                            for key, value in state.items()))  # yapf: disable
        number = len((get_omitted(checkpoint) or omitted or {})['names'])
        size = sum(value.nbytes for value in state.values()) / 1e6
        print(f'{source}: {len(state)} tensors ({size:.1f} MB), '
              f'{"without" if trained_only else "with"} {number} of {base}')
        if not dry_run:
            _write_file(state, checkpoint['meta'], out)
        return
    if base is not None:
        checkpoint = add_base(checkpoint, source, base, trust)
    plan = plan_conversion(checkpoint, source)
    print(format_plan(plan, checkpoint) if in_full else plan)
    if not dry_run:
        _write_file(plan.state, checkpoint.get('meta', {}), out)
