"""Checkpoints that mmengine loads: without running what is in them, published models renamed.

mmengine's own loaders fall back to unpickling whatever a file holds. Its runners and inferencers
run the config that a checkpoint carries as Python. :func:`replace_loaders` prevents both;
``colonnade.backbones`` calls it when it is imported. Every checkpoint that mmengine, mmdet or mmseg
load then goes through :func:`~.files.read_checkpoint`. That holds for every scheme: a path,
``http://``, ``timm://``, ``open-mmlab://``, ``torchvision://``, ``s3://`` ... Code that calls
``torch.load`` itself is not changed.
"""
from __future__ import annotations

import ast
import logging
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

from mmengine.logging import print_log
from mmengine.runner import checkpoint as mmengine_checkpoint

from .downloads import fetch
from .files import read_checkpoint
from .layouts import published_model

#: what a config that is dumped consists of: assignments of literals and of calls of dict
PLAIN = (ast.Module, ast.Assign, ast.Name, ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Call,
         ast.keyword, ast.UnaryOp, ast.USub, ast.Load, ast.Store)
#: where checkpoints carry configs: mmengine runs the first when it resumes, and the others for
#: inferencers that are given no config
CONFIGS = (('meta', 'config'), ('meta', 'cfg'), ('message_hub', 'runtime_info', 'cfg'))
OUR_IMPORTS = ('colonnade', 'mmdet', 'mmseg')


def load_from_anywhere(filename: str, map_location: Any = None) -> dict[str, Any]:
    """A path, an ``http(s)://`` URL or ``timm://NAME``, as mmengine calls it; on the CPU."""
    return prepared(fetch(filename), filename)


def load_from_file(file: str | Path | BinaryIO,
                   map_location: Any = None,
                   weights_only: bool | None = None) -> dict[str, Any]:
    """A local file or the bytes of one that mmengine has fetched; on the CPU."""
    if isinstance(file, (str, Path)):
        return prepared(fetch(file), str(file))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, 'checkpoint')
        path.write_bytes(file.read())
        return prepared(read_checkpoint(path), 'the checkpoint')


def replace_loaders() -> None:
    """Let mmengine load checkpoints by the functions above."""
    mmengine_checkpoint._safe_torch_load = load_from_file
    mmengine_checkpoint.load_from_http = load_from_anywhere
    for prefixes in ('', ('http://', 'https://'), 'timm://'):
        mmengine_checkpoint.CheckpointLoader.register_scheme(
            prefixes, load_from_anywhere, force=True)


def prepared(checkpoint: dict[str, Any], source: str) -> dict[str, Any]:
    """A checkpoint under our names, and without the configs that would run code."""
    checkpoint = strip_code(checkpoint, source)
    if isinstance(checkpoint.get('state_dict'), Mapping):
        checkpoint['state_dict'] = published_model(checkpoint['state_dict'])
    return checkpoint


def strip_code(checkpoint: dict[str, Any], source: str | None = None) -> dict[str, Any]:
    """A copy without those of its configs that are more than values.

    Args:
        checkpoint: Stays as it is.
        source: Whose configs are wanted: what is left out is said.
    """
    checkpoint = dict(checkpoint)
    for *parents, key in CONFIGS:
        holder: Any = checkpoint
        for parent in parents:
            if not isinstance(holder.get(parent), Mapping):
                break
            holder[parent] = dict(holder[parent])
            holder = holder[parent]
        else:
            if key in holder and not is_plain_config(holder[key]):
                del holder[key]
                if source is None:
                    continue
                print_log(
                    f'{source}: the config in it is left out, since it holds more than values and '
                    'would be run as Python: name a config file instead',
                    logger='current',
                    level=logging.WARNING)
    return checkpoint


def is_plain_config(text: Any) -> bool:
    """Whether a config, as text, assigns values alone and names no code but in registries.

    It may import our packages. Elsewhere, mmengine would import and call whatever a ``type`` like
    ``os.system`` names. mmcv and mmdet evaluate some strings of models, such as the ``type`` of
    ``nms``: calls in them are no values.
    """
    try:
        if '{{' in text:  # which mmengine replaces before it runs the text
            return False
        tree = ast.parse(text)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return False
    for node in ast.walk(tree):
        if not isinstance(node, PLAIN):
            return False
        if isinstance(node, ast.Call) and (node.args or ast.unparse(node.func) != 'dict'):
            return False
        if isinstance(node, ast.Assign) and len(node.targets) > 1:
            return False
    values = {ast.unparse(node.targets[0]): node.value for node in tree.body}
    if '_base_' in values or not all(name.isidentifier() for name in values):
        return False
    imports = strings_in(values.pop('custom_imports', ast.Module([], [])))
    evaluated = strings_in(*(values[name] for name in ('model', ) if name in values))
    return (not any('(' in text for text in (*evaluated, *types_in(tree)))
            and all(name.split('.')[0] in OUR_IMPORTS for name in imports)
            and not any(map(is_module_name, strings_in(*values.values())))
            and not any(is_module(kind) for kind in types_in(tree)))


def strings_in(*trees: ast.AST) -> Iterator[str]:
    """All strings in parts of a config, keys of dicts included."""
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def types_in(tree: ast.AST) -> Iterator[str]:
    """What the ``type`` of any dict in a config is."""
    for node in ast.walk(tree):
        pairs = zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ()
        found = [value for key, value in pairs
                 if isinstance(key, ast.Constant) and key.value == 'type']  # yapf: disable
        if isinstance(node, ast.keyword) and node.arg == 'type':
            found.append(node.value)
        for value in found:
            yield from strings_in(value)


def is_module_name(text: str) -> bool:
    """Whether mmengine might take a string for something in a module."""
    return '.' in text and is_module(text.partition('.')[0])


def is_module(name: str) -> bool:
    """Whether there is a module of this name to import."""
    return name.isidentifier() and (name in sys.modules or find_spec(name) is not None)
