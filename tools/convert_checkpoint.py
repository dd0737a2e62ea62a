"""Write published weights of any known layout as ours, and say what became of each tensor.

    python tools/convert_checkpoint.py maskrcnn_xcit_small_12_p16.pth ours.pth --report
"""
from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError

from colonnade.backbones import ColumnarBackbone
from colonnade.backbones.columnar import infer_trunk
from colonnade.engine.atomic import check_writable, replacing
from colonnade.weights.downloads import fetch
from colonnade.weights.layouts import remap
from colonnade.weights.loading import Plan, plan_loading
from colonnade.weights.state_dicts import State, WeightsError, state_dict_of, without_prefix


def build_trunk(state: State, source: str) -> ColumnarBackbone:
    """The trunk that a state dict under our names was made for, without memory for its weights.

    Raises:
        WeightsError: If the state dict does not show it.
    """
    try:
        trunk, arch = infer_trunk(without_prefix(state, 'backbone.') or state)
        with torch.device('meta'):
            return trunk(arch)
    except ValueError as error:
        raise WeightsError(f'{source} shows no trunk that could be built: {error}') from error


def plan_conversion(checkpoint: dict[str, Any], source: str) -> Plan:
    """What of a checkpoint is kept, under which names: the trunk strictly, all else as it is.

    Raises:
        WeightsError: If its layout is not known, or its trunk is not whole.
    """
    original = state_dict_of(checkpoint, source)
    _, state = remap(original, source)
    plan = plan_loading(build_trunk(state, source), checkpoint, source)
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
    """Write a converted file atomically.

    Raises:
        OSError: If it cannot be written.
    """
    with replacing(out) as scratch:
        try:
            if out.suffix == '.safetensors':
                safetensors.torch.save_file({
                    k: v.contiguous()
                    for k, v in plan.state.items()
                }, scratch)
            else:
                torch.save(dict(meta=meta, state_dict=plan.state), scratch)
        except (RuntimeError, SafetensorError) as error:  # so torch and safetensors say it
            raise OSError(f'{out} cannot be written, is the disk full? {error}') from error


def main() -> None:
    """Read, convert, report and write as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('source', metavar='IN', help='file, address or timm://NAME')
    parser.add_argument('out', metavar='OUT', type=Path, help='.pth or .safetensors')
    parser.add_argument('--report', action='store_true', help='print a line for each tensor')
    parser.add_argument('--dry-run', action='store_true', help='write nothing')
    parser.add_argument('--force', action='store_true', help='overwrite OUT')
    parser.add_argument('--trust', action='store_true', help='run what is pickled in IN')
    args = parser.parse_args()
    try:
        if args.out.suffix not in ('.pth', '.safetensors'):
            raise ValueError(f'OUT must end in .pth or .safetensors, got {args.out}')
        if args.out.exists() and not (args.force or args.dry_run):
            raise FileExistsError(f'{args.out} exists: name another file, or say --force')
        if not args.dry_run:
            check_writable(args.out)
        checkpoint = fetch(args.source, trust=args.trust)
        plan = plan_conversion(checkpoint, args.source)
        print(report(plan, checkpoint) if args.report else plan)
        if not args.dry_run:
            write(plan, checkpoint.get('meta', {}), args.out)
    except (ValueError, OSError) as error:
        parser.exit(1, f'convert_checkpoint: {error}\n')


if __name__ == '__main__':
    main()
