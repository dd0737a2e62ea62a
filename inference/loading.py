"""Loading of detectors and segmenters from a config and weights."""
from __future__ import annotations

import warnings
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from mmengine.config import Config, ConfigDict
from mmengine.device import get_device
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import DATASETS, MODELS, DefaultScope

from colonnade.backbones.lora import merge_updates
from colonnade.common.errors import UserError
from colonnade.configs import find_config
from colonnade.engine.work_dir import Run
from colonnade.models.building import replace_sync_norms
from colonnade.models.fusion import maybe_fuse
from colonnade.models.half_precision import Amp, compute_in, get_half_type
from colonnade.runtime.colors import distinct_colors
from colonnade.runtime.images import SUFFIXES
from colonnade.settings.backbone_config import fill_backbone_settings
from colonnade.settings.checks.all_checks import check_model, log_warnings
from colonnade.settings.classes import get_num_classes, iter_dataset_heads
from colonnade.settings.config_values import remove_key
from colonnade.settings.dataset_paths import find_datasets, read_names_of_classes
from colonnade.settings.overrides import merge_options
from colonnade.settings.reading import prepare_library, read_config, report_build_errors
from colonnade.settings.registries import find_class
from colonnade.weights.config_text import is_plain_config
from colonnade.weights.downloads import fetch
from colonnade.weights.loading import plan_loading
from colonnade.weights.mmengine_loaders import strip_code
from colonnade.weights.sharded_files import is_sharded
from colonnade.weights.state_dicts import WeightsError, get_state_dict

from .drawing import Color
from .model import Model, get_model_kind
from .packages.package import check_embedded_config, is_package_folder, open_package
from .packages.package_errors import package_errors
from .packages.safety_checks import check_checkpoint, check_safetensors

CHECKPOINTS = ('.pth', '.pt')
WEIGHTS = (*CHECKPOINTS, '.safetensors')
LOADING = Lock()  # mmengine's default scope is shared by all threads.

# mmseg warns about a setting of training losses whenever it builds a head.
warnings.filterwarnings('ignore', message='Default ``avg_non_ignore`` is False')


def load(config: str | Path | Config,
         weights: str | Path | None = None,
         *,
         device: str | None = None,
         cfg_options: dict[str, Any] | None = None,
         fuse: bool | None = False,
         amp: Amp = False,
         trust: bool = False) -> Model:
    """Load a detector or segmenter with its weights, ready to predict.

    Args:
        config: Config file, name of a shipped config (see ``colonnade.list_configs()``),
            ``Config``, checkpoint of a run, which contains its config, work dir of a run, or folder
            of a package.
        weights: File, URL or ``timm://NAME`` of the full model. Omit it if ``config`` is a
            checkpoint or a package. For a work dir, it defaults to the best checkpoint, or the last
            one if there is no best.
        device: ``'cpu'``, ``'cuda:0'``, … Defaults to a GPU if there is one.
        cfg_options: Settings that override the config, as in
            ``{'model.test_cfg.rcnn.score_thr': 0.3}``.
        fuse: Whether to fold and merge layers, which changes predictions by rounding error;
            ``None`` does so where possible. Figures of activations need a model that is not fused.
        amp: Half precision: ``'bfloat16'``, ``'float16'`` on a GPU, or True for bfloat16 on a CPU
            and float16 on a GPU. Outputs stay float32.
        trust: Whether to unpickle the weights and build whatever a package's config names; set it
            only if you trust their author.

    Raises:
        FileNotFoundError: If the config or a file does not exist.
        PackageError: If a package is damaged or cannot be loaded, or if a package or the config in
            a checkpoint needs ``trust``.
        ValueError: If config, options and classes contradict each other, the device does not exist,
            or it does not support ``amp``.
        WeightsError: If the weights cannot be fetched or read, or do not fit the model.
    """
    torch_device = get_torch_device(device)
    dtype = get_half_type(amp, torch_device.type)
    with LOADING:
        has_own_config = not isinstance(config, Config) and (weights is None
                                                             or Path(config).is_dir())
        is_package = has_own_config and is_package_folder(config)
        cfg, weights = resolve_sources(config, weights, trust=trust)
        if cfg_options:
            merge_options(cfg, cfg_options)
        with DefaultScope.overwrite_default_scope(cfg.default_scope):
            with package_errors(str(config)) if is_package else nullcontext():
                model = build_model(
                    cfg,
                    weights,
                    torch_device,
                    trust=trust,
                    trust_config=trust or not has_own_config)
            optimize_model(model, fuse, dtype)
            return model


def build_model(cfg: Config, weights: str | Path, device: torch.device, *, trust: bool,
                trust_config: bool) -> Model:
    """Build the model of a config, which is modified in place, and load its weights.

    Args:
        trust: Whether to unpickle the weights.
        trust_config: Whether the config may name files and be larger than the weights.
    """
    settings = replace_sync_norms(cfg.model)
    fill_backbone_settings(settings)
    checkpoint = None
    if lora := pop_lora(settings):
        checkpoint = fetch(weights, trust=trust)
        state = get_state_dict(checkpoint, str(weights))
        checkpoint = dict(
            meta=checkpoint.get('meta') or {}, state_dict=merge_updates(state, **lora))
        pop_lora(cfg.model)
    if not trust_config:
        # All weights are loaded from the file, so initializers would only read other files.
        settings = ConfigDict(remove_key(settings, 'init_cfg'))
        if checkpoint is None and Path(weights).suffix == '.safetensors':
            check_safetensors(settings, weights, str(weights))
        else:
            checkpoint = checkpoint or fetch(weights)
            check_checkpoint(settings, checkpoint, str(weights))
    log_warnings(check_model(cfg))
    fill_backbone_settings(cfg.model)
    with report_build_errors():
        module = revert_sync_batchnorm(MODELS.build(settings))
    get_model_kind(module)  # raises for panoptic models
    if checkpoint is None:
        checkpoint = fetch(weights, trust=trust)
    module.load_state_dict(plan_loading(module, checkpoint, str(weights)).state)
    meta = checkpoint.get('meta') or {}
    classes, palette = find_classes(cfg, meta, str(weights))
    progress = {key: meta[key] for key in ('epoch', 'iter') if type(meta.get(key)) is int}
    module.to(device).eval()
    return Model(module.requires_grad_(False), cfg, classes, palette, str(weights), progress)


def pop_lora(settings: dict[str, Any]) -> dict[str, Any] | None:
    """Remove the LoRA of a model's backbone from its settings, and return it."""
    backbone = settings.get('backbone')
    return backbone.pop('lora', None) if isinstance(backbone, dict) else None


def optimize_model(model: Model, fuse: bool | None, dtype: torch.dtype | None) -> bool:
    """Fuse a model in place, if possible for ``fuse=None``, and let it compute in ``dtype``.

    Returns:
        Whether it is fused.
    """
    is_fused = bool(maybe_fuse(model.module, fuse, dtype))
    if is_fused and model.kind == 'labels':
        from colonnade.models.fusion.label_maps import fuse_label_maps  # imports mmseg
        fuse_label_maps(model.module)
    if dtype is not None:
        compute_in(model.module, dtype)
        model.half_type = dtype
    return is_fused


def get_torch_device(name: str | None) -> torch.device:
    """Return a device by its name, the best available one for None."""
    try:
        device = torch.device(name or get_device())
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        is_known = str(name).partition(':')[0] in ('cpu', 'cuda', 'mps', 'xpu')
        reason = str(error).partition('. ')[0] if is_known else 'choose cpu, cuda or cuda:0'
        raise UserError(f'device {name} cannot be used: {reason}') from error
    return device


def resolve_sources(config: str | Path | Config, weights: str | Path | None, *,
                    trust: bool) -> tuple[Config, str | Path]:
    """Return the config and the path of the weights."""
    if isinstance(config, Config):
        cfg = deepcopy(config)
        prepare_library(cfg, cfg.filename or 'the config')
    else:
        check_model_paths(config, weights)
        if is_package_folder(config):
            if weights is not None:
                raise UserError(f'{config} is a package, which already contains weights: remove '
                                f'{weights}')
            package = open_package(config, trust=trust)
            return package.config, package.weights
        if Path(config).is_dir() and not is_sharded(config):
            path, weights = Run(config).find_model(weights)
            if trust:
                return read_config(path), weights
            return parse_run_config(path.read_text(encoding='utf-8'), str(path)), weights
        if Path(config).suffix in CHECKPOINTS and weights is None:
            return read_embedded_config(config, trust=trust), config
        cfg = read_config(find_config(config))
    if weights is None:
        raise UserError(f'no weights after {config}: pass the checkpoint of a trained model')
    return cfg, weights


def check_model_paths(config: str | Path, weights: str | Path | None) -> None:
    """Raise a UserError if a config or weights are files of another type, as in a wrong order."""
    suffix = Path(config).suffix.lower()
    if suffix in SUFFIXES:
        raise UserError(f'expected a config as the first argument, got the image {config}: pass '
                        'CONFIG CHECKPOINT INPUT ...')
    if weights is None:
        if suffix == '.safetensors':
            raise UserError(f'{config} contains no config: pass a config before it, or pass a '
                            'package folder')
        return
    if suffix in WEIGHTS:
        raise UserError(f'expected a config as the first argument, got the weights {config}: pass '
                        'the config before them')
    is_other_folder = Path(weights).is_dir() and not is_sharded(weights)
    if Path(weights).suffix.lower() in SUFFIXES or is_other_folder:
        raise UserError(f'no weights after {config}: {weights} is not a weights file')


def read_embedded_config(checkpoint: str | Path, *, trust: bool) -> Config:
    """Return the config in a checkpoint of a run."""
    meta = strip_code(fetch(checkpoint, trust=trust)).get('meta') or {}
    if not (text := meta.get('cfg')):
        raise WeightsError(f'{checkpoint} contains no usable config: pass a config before it')
    return parse_run_config(text, str(checkpoint), trust=trust)


def parse_run_config(text: str, source: str, *, trust: bool = False) -> Config:
    """Return the config that a run wrote, without running its code."""
    if not is_plain_config(text):
        raise WeightsError(f'the config of {source} contains code: pass a config and a checkpoint, '
                           'or pass --trust, or trust=True, if you trust its author')
    cfg = Config.fromstring(text, '.py')
    prepare_library(cfg, source)
    if not trust:
        check_embedded_config(cfg, source)
    return cfg


def find_classes(cfg: Config, meta: dict[str, Any],
                 weights: str) -> tuple[tuple[str, ...], tuple[Color, ...]]:
    """Return class names and colors from a checkpoint, or else from the dataset of the config."""
    metainfo = {key.lower(): value for key, value in (meta.get('dataset_meta') or {}).items()}
    origin = weights
    if not metainfo.get('classes'):
        metainfo, origin = find_dataset_metainfo(cfg), 'the dataset of the config'
    classes = read_names_of_classes(metainfo.get('classes') or ())
    num_stuff = cfg.model.get('panoptic_fusion_head', {}).get('num_stuff_classes', 0)
    for name, head in iter_dataset_heads(cfg.model):
        # The heads of boxes and masks of Panoptic FPN predict only things.
        is_of_things = num_stuff > 0 and 'num_stuff_classes' not in head
        num_classes = len(classes) - num_stuff if is_of_things else len(classes)
        if (expected := get_num_classes(head)) != num_classes:
            things = ' of things' if is_of_things else ''
            raise UserError(f'{origin} has {num_classes} classes{things}, but {name} has '
                            f'{expected}')
    palette = metainfo.get('palette')
    if not isinstance(palette, (list, tuple)) or len(palette) < len(classes):
        palette = distinct_colors(len(classes))
    return classes, tuple((int(r), int(g), int(b)) for r, g, b in palette[:len(classes)])


def find_dataset_metainfo(cfg: Config) -> dict[str, Any]:
    """Return the metainfo of a config's dataset without reading its files."""
    for _, dataset in find_datasets(cfg, ('test_dataloader', 'val_dataloader', 'train_dataloader')):
        defaults = getattr(find_class(dataset.type, DATASETS), 'METAINFO', None) or {}
        return {**defaults, **(dataset.get('metainfo') or {})}
    return {}
