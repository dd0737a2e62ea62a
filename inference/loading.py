"""From a config and weights to a model that predicts."""
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

from colonnade.common.errors import UserError
from colonnade.configs import find_config
from colonnade.models.fusion import maybe_fuse
from colonnade.models.half_precision import Amp, compute_in, half_type
from colonnade.models.meta_device import with_plain_norms
from colonnade.runtime.colors import distinct_colors
from colonnade.runtime.images import SUFFIXES
from colonnade.settings.backbone_config import settle_backbone
from colonnade.settings.checks.all_checks import check_model, log_warnings
from colonnade.settings.classes import heads_of_all_classes, num_classes_of
from colonnade.settings.config_values import without_key
from colonnade.settings.dataset_paths import find_datasets, names_of_classes
from colonnade.settings.overrides import merge_options
from colonnade.settings.reading import build_error, prepare_library, read_config
from colonnade.settings.registries import find_class
from colonnade.weights.downloads import fetch
from colonnade.weights.loading import plan_loading
from colonnade.weights.mmengine_loaders import is_plain_config, strip_code
from colonnade.weights.sharded_files import is_sharded
from colonnade.weights.state_dicts import WeightsError

from .data_samples import kind_of
from .drawing import Colour
from .model import Model
from .packages import check_parts, check_stored, check_stored_shapes, open_package, package_errors

CHECKPOINTS = ('.pth', '.pt')
WEIGHTS = (*CHECKPOINTS, '.safetensors')
LOADING = Lock()  # registries have one default scope for all threads

# mmseg warns of a setting of training losses whenever it builds a head
warnings.filterwarnings('ignore', message='Default ``avg_non_ignore`` is False')


def load(config: str | Path | Config,
         weights: str | Path | None = None,
         *,
         device: str | None = None,
         cfg_options: dict[str, Any] | None = None,
         fuse: bool | None = False,
         amp: Amp = False,
         trust: bool = False) -> Model:
    """A detector or segmenter with its weights, ready to predict.

    Args:
        config: A config file, the name of a shipped config (``colonnade.list_configs()``), a
            ``Config``, a checkpoint of a run, which holds its config, or a folder of
            ``tools/package.py``.
        weights: File, URL or ``timm://NAME`` of a whole model. Those of the checkpoint or of the
            folder if ``config`` is one.
        device: ``'cpu'``, ``'cuda:0'`` ...; a GPU where there is one, if not given.
        cfg_options: Settings that override the config, as in
            ``{'model.test_cfg.rcnn.score_thr': 0.3}``.
        fuse: Fold and merge layers, which changes answers by rounding; ``None`` does so where it is
            possible. Pictures of what a model looks at need one that is not fused.
        amp: Compute in half precision: ``'bfloat16'``, ``'float16'`` on a GPU, or True for bfloat16
            on a CPU and float16 on a GPU. Answers stay float32.
        trust: Run what is pickled in the weights, and whatever a folder's config names; only if
            you trust who made them.

    Raises:
        FileNotFoundError: If there is no such config or file.
        PackageError: If a folder is damaged, cannot be loaded, or asks for trust; or if the config
            within a checkpoint does.
        ValueError: If the config, the options or the classes do not fit each other, or there is no
            such device, or it gains nothing by ``amp``.
        WeightsError: If the weights cannot be fetched or read, or do not fit the model.
    """
    place = device_of(device)
    dtype = half_type(amp, place.type)
    with LOADING:
        carries_config = weights is None and not isinstance(config, Config)
        cfg, weights = resolve_sources(config, weights, trust=trust)
        if cfg_options:
            merge_options(cfg, cfg_options)
        is_package = carries_config and Path(config).is_dir()
        with DefaultScope.overwrite_default_scope(cfg.default_scope):
            with package_errors(str(config)) if is_package else nullcontext():
                model = build_model(cfg, weights, place, trust=trust or not carries_config)
            make_fast(model, fuse, dtype)
            return model


def build_model(cfg: Config, weights: str | Path, place: torch.device, *, trust: bool) -> Model:
    """Build the model of a config and load its weights.

    Args:
        cfg: Changed in place.
        weights: As of :func:`load`.
        place: Device of the model.
        trust: False builds no more than the weights account for, see
            :mod:`~colonnade.inference.packages.memory_limits`.

    Raises:
        ValueError: As :func:`load`.
    """
    settings = with_plain_norms(cfg.model)
    settle_backbone(settings)
    checkpoint = None
    if not trust:
        settings = ConfigDict(without_key(settings,
                                          'init_cfg'))  # all weights are loaded from a file
        if Path(weights).suffix == '.safetensors':
            check_stored_shapes(settings, weights, str(weights))
        else:
            checkpoint = fetch(weights)
            check_stored(settings, checkpoint, str(weights))
    log_warnings(check_model(cfg))
    settle_backbone(cfg.model)
    with build_error():
        module = revert_sync_batchnorm(MODELS.build(settings))
    kind_of(module)  # which refuses panoptic models
    if checkpoint is None:
        checkpoint = fetch(weights, trust=trust)
    module.load_state_dict(plan_loading(module, checkpoint, str(weights)).state)
    meta = checkpoint.get('meta') or {}
    classes, palette = classes_of(cfg, meta, str(weights))
    progress = {key: meta[key] for key in ('epoch', 'iter') if type(meta.get(key)) is int}
    module.to(place).eval()
    return Model(module.requires_grad_(False), cfg, classes, palette, str(weights), progress)


def make_fast(model: Model, fuse: bool | None, dtype: torch.dtype | None) -> bool:
    """Fuse a model if that is asked for, and let it compute in half precision.

    Args:
        model: That is not fused; changed in place.
        fuse: ``None`` fuses what can be fused.
        dtype: Of :func:`.half_type`; ``None`` is float32.

    Returns:
        Whether it is fused now.

    Raises:
        ValueError: If it is to be fused, and cannot be.
    """
    fused = bool(maybe_fuse(model.module, fuse, dtype))
    if fused and model.kind == 'labels':
        from colonnade.models.fusion.label_maps import fuse_label_maps  # brings mmseg
        fuse_label_maps(model.module)
    if dtype is not None:
        compute_in(model.module, dtype)
    return fused


def device_of(name: str | None) -> torch.device:
    """The device of a name, the best one there is for None.

    Raises:
        ValueError: If there is none of this name.
    """
    try:
        device = torch.device(name or get_device())
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        known = str(name).partition(':')[0] in ('cpu', 'cuda', 'mps', 'xpu')
        reason = str(error).partition('. ')[0] if known else 'name cpu, cuda or cuda:0'
        raise UserError(f'device {name} cannot be used: {reason}') from error
    return device


def resolve_sources(config: str | Path | Config, weights: str | Path | None, *,
                    trust: bool) -> tuple[Config, str | Path]:
    """The config that is meant and where the weights are.

    Raises:
        FileNotFoundError: If there is no such config or file.
        ValueError: If there are no weights, or the config cannot be read.
        WeightsError: If a checkpoint that is given in place of a config holds none.
    """
    if not isinstance(config, Config):
        check_types(config, weights)
    if isinstance(config, Config):
        cfg = deepcopy(config)
        prepare_library(cfg, cfg.filename or 'the config')
    elif Path(config).is_dir():
        if weights is not None:
            raise UserError(f'{config} is a folder that has its weights: name no others')
        package = open_package(config, trust=trust)
        return package.config, package.weights
    elif Path(config).suffix in CHECKPOINTS and weights is None:
        return config_within(config, trust=trust), config
    else:
        cfg = read_config(find_config(config))
    if weights is None:
        raise UserError(f'no weights behind {config}: name the file of a trained model')
    return cfg, weights


def check_types(config: str | Path, weights: str | Path | None) -> None:
    """Raise a ValueError for files of other kinds, as when they are named in another order.

    Args:
        config: A config, a checkpoint of a run or a folder.
        weights: Those of a whole model, if there are any.
    """
    suffix = Path(config).suffix.lower()
    if suffix in SUFFIXES:
        raise UserError(f'{config} is an image: a config stands before it, and weights')
    if weights is None:
        if suffix == '.safetensors':
            raise UserError(f'{config} holds no config: name one before it, or the folder of a '
                            'packaged model')
        return
    if suffix in WEIGHTS:
        raise UserError(f'{config} holds weights, and is no config: name the config first')
    no_weights = Path(weights).is_dir() and not is_sharded(weights)
    if Path(weights).suffix.lower() in SUFFIXES or no_weights:
        raise UserError(f'no weights behind {config}: {weights} is no file of weights')


def config_within(checkpoint: str | Path, *, trust: bool) -> Config:
    """The config that a checkpoint of a run holds.

    Raises:
        PackageError: If its model names more than registered classes, and is not trusted.
        WeightsError: If it holds none, or one that is more than values.
    """
    meta = strip_code(fetch(checkpoint, trust=trust)).get('meta') or {}
    text = meta.get('cfg')
    if not text or not is_plain_config(text):
        raise WeightsError(f'{checkpoint} holds no config that can be used: name a config before '
                           'it, as in load(CONFIG, CHECKPOINT)')
    cfg = Config.fromstring(text, '.py')
    prepare_library(cfg, str(checkpoint))
    if not trust:
        check_parts(cfg, str(checkpoint))
    return cfg


def classes_of(cfg: Config, meta: dict[str, Any],
               weights: str) -> tuple[tuple[str, ...], tuple[Colour, ...]]:
    """The classes of a model and their colours: those in its checkpoint, or else of its data set.

    Args:
        cfg: Of the model.
        meta: Of the checkpoint.
        weights: Where it is from.

    Raises:
        ValueError: If their number is not the model's.
    """
    known = {key.lower(): value for key, value in (meta.get('dataset_meta') or {}).items()}
    origin = weights
    if not known.get('classes'):
        known, origin = metainfo_of(cfg), 'the data set of the config'
    classes = names_of_classes(known.get('classes') or ())
    for name, head in heads_of_all_classes(cfg.model):
        if (number := num_classes_of(head)) != len(classes):
            raise UserError(f'{origin} names {len(classes)} classes, and {name} knows {number}')
    palette = known.get('palette')
    if not isinstance(palette, (list, tuple)) or len(palette) < len(classes):
        palette = distinct_colors(len(classes))
    return classes, tuple((int(r), int(g), int(b)) for r, g, b in palette[:len(classes)])


def metainfo_of(cfg: Config) -> dict[str, Any]:
    """What the data set of a config says of its classes, without its files."""
    for _, dataset in find_datasets(cfg, ('test_dataloader', 'val_dataloader', 'train_dataloader')):
        known = getattr(find_class(dataset.type, DATASETS), 'METAINFO', None) or {}
        return {**known, **(dataset.get('metainfo') or {})}
    return {}
