"""Replacement of mmengine's checkpoint loaders, which would run code of the files.

mmengine's loaders fall back to unpickling anything, and its runners and inferencers run the config
in a checkpoint as Python. :func:`replace_loaders` prevents both; ``colonnade.backbones`` calls it
on import. Then every checkpoint that mmengine, mmdet or mmseg load is read by
:func:`~.files.read_checkpoint`, and published models get Colonnade's names. That holds for paths,
``http://``, ``timm://``, ``open-mmlab://``, ``torchvision://``, ``s3://`` and others. Code that
calls ``torch.load`` itself is not changed.
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
from .formats import convert_published_model

#: syntax of dumped configs: assignments of literals and of calls of dict
PLAIN = (ast.Module, ast.Assign, ast.Name, ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Call,
         ast.keyword, ast.UnaryOp, ast.USub, ast.Load, ast.Store)
#: keys of configs in checkpoints: mmengine runs the first when it resumes, the others for
#: inferencers without a config
CONFIGS = (('meta', 'config'), ('meta', 'cfg'), ('message_hub', 'runtime_info', 'cfg'))
OUR_IMPORTS = ('colonnade', 'mmdet', 'mmseg')


def load_from_anywhere(filename: str, map_location: Any = None) -> dict[str, Any]:
    """Load a path, an ``http(s)://`` URL or ``timm://NAME`` to the CPU, as mmengine calls it."""
    return prepare(fetch(filename), filename)


def load_from_file(file: str | Path | BinaryIO,
                   map_location: Any = None,
                   weights_only: bool | None = None) -> dict[str, Any]:
    """Load a local file, or one that mmengine has opened, to the CPU."""
    if isinstance(file, (str, Path)):
        return prepare(fetch(file), str(file))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, 'checkpoint')
        path.write_bytes(file.read())
        return prepare(read_checkpoint(path), 'the checkpoint')


def replace_loaders() -> None:
    """Make mmengine load checkpoints by the functions above."""
    mmengine_checkpoint._safe_torch_load = load_from_file
    mmengine_checkpoint.load_from_http = load_from_anywhere
    for prefixes in ('', ('http://', 'https://'), 'timm://'):
        mmengine_checkpoint.CheckpointLoader.register_scheme(
            prefixes, load_from_anywhere, force=True)


def prepare(checkpoint: dict[str, Any], source: str) -> dict[str, Any]:
    """Convert published models, and strip configs that would run code."""
    checkpoint = strip_code(checkpoint, source)
    if isinstance(checkpoint.get('state_dict'), Mapping):
        checkpoint['state_dict'] = convert_published_model(checkpoint['state_dict'])
    return checkpoint


def strip_code(checkpoint: dict[str, Any], source: str | None = None) -> dict[str, Any]:
    """Return a copy of a checkpoint without configs that contain more than values.

    Args:
        checkpoint: Content of a file; it is not changed.
        source: Name of the file for a warning. Defaults to no warning.
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
                    f'{source}: ignoring its config, which contains more than values and would be '
                    'run as Python: pass a config file instead',
                    logger='current',
                    level=logging.WARNING)
    return checkpoint


def is_plain_config(text: Any) -> bool:
    """Return True if the text of a config only assigns values, and names code in registries only.

    It may import Colonnade, mmdet and mmseg. mmengine would import and call a ``type`` like
    ``os.system``. mmcv and mmdet evaluate some strings of models, such as the ``type`` of ``nms``,
    so these may not contain calls.
    """
    try:
        if '{{' in text:  # mmengine's templates
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
    imports = iter_strings(values.pop('custom_imports', ast.Module([], [])))
    evaluated = iter_strings(*(values[name] for name in ('model', ) if name in values))
    return (not any('(' in text for text in (*evaluated, *iter_types(tree)))
            and all(name.split('.')[0] in OUR_IMPORTS for name in imports)
            and not any(map(is_module_name, iter_strings(*values.values())))
            and not any(is_module(kind) for kind in iter_types(tree)))


def iter_strings(*trees: ast.AST) -> Iterator[str]:
    """Yield all strings in parts of a config, including keys of dicts."""
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def iter_types(tree: ast.AST) -> Iterator[str]:
    """Yield the ``type`` of each dict in a config."""
    for node in ast.walk(tree):
        pairs = zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ()
        types = [value for key, value in pairs
                 if isinstance(key, ast.Constant) and key.value == 'type']  # yapf: disable
        if isinstance(node, ast.keyword) and node.arg == 'type':
            types.append(node.value)
        for value in types:
            yield from iter_strings(value)


def is_module_name(text: str) -> bool:
    """Return True if mmengine might resolve a string to an attribute of a module."""
    return '.' in text and is_module(text.partition('.')[0])


def is_module(name: str) -> bool:
    """Return True if a module of this name can be imported."""
    return name.isidentifier() and (name in sys.modules or find_spec(name) is not None)
