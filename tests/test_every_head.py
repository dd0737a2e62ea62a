"""Every tool with every head."""
from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT
from helpers.synthetic_data import CLASSES, draw_instances, draw_label_maps
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.optim import OptimWrapper, build_optim_wrapper
from mmengine.registry import DATASETS, MODELS
from torch import nn
from torch.utils._pytree import tree_leaves

from colonnade.backbones.plain_vit.query_tokens import QueryTokens
from colonnade.engine.optim.batch_size import set_grad_accumulation
from colonnade.evaluation.tta import augment_tests
from colonnade.models.building import build_on_meta
from colonnade.models.checkpoint_conversion import convert
from colonnade.models.class_transfer import find_class_rows
from colonnade.models.complexity import build_from_file, count_parameters, iter_parts, sum_parts
from colonnade.models.fusion import fuse as fuse_model
from colonnade.models.fusion.full_model import find_columnar_modules
from colonnade.models.half_precision import Bfloat16OptimWrapper, compute_in
from colonnade.settings.checks.all_checks import check_config
from colonnade.settings.classes import get_num_classes, iter_class_heads
from colonnade.settings.dataset_paths import redirect_data_root
from colonnade.settings.reading import read_config
from colonnade.weights.files import read_checkpoint

LEAVES = {
    leaf.parent.name: leaf
    for folder in ('configs', 'tests/helpers/configs')  # the second has a toy, as a new head would
    for pattern in ('panoptic_fpn/*_slim_shapes_panoptic', '[!_]*/*_slim_shapes')
    for leaf in sorted(ROOT.glob(f'{folder}/{pattern}.py'))
}
SUPPRESS_NOTHING = ('dino', 'mask2former', 'pmt', 'eomt')  # no --tta


@functools.cache
def built(leaf: Path) -> nn.Module:
    torch.manual_seed(0)
    model = MODELS.build(read_config(leaf).model)
    model.init_weights()  # some parameters hold anything before
    return model


def batch(cfg: Config, dataloader: str, model: nn.Module, training: bool = False) -> dict:
    """Load two images as the config does."""
    dataset = DATASETS.build(cfg[dataloader].dataset)
    return model.data_preprocessor(pseudo_collate([dataset[0], dataset[1]]), training)


@pytest.fixture
def head(request: pytest.FixtureRequest, shapes: Path, tmp_path: Path) -> SimpleNamespace:
    """A slim config of a head, its data, and its model."""
    leaf = LEAVES[request.param]
    cfg = read_config(leaf)
    redirect_data_root(cfg, shapes / ('coco' if cfg.default_scope == 'mmdet' else 'ade'))
    return SimpleNamespace(
        name=request.param,
        leaf=leaf,
        cfg=cfg,
        model=copy.deepcopy(built(leaf)),
        run_tool=request.getfixturevalue('run_tool'),
        monkeypatch=request.getfixturevalue('monkeypatch'),
        tmp_path=tmp_path)


def create_config(head: SimpleNamespace) -> None:
    out, expected = head.tmp_path / 'own.py', {2}
    if head.name == 'panoptic_fpn':
        data = ['--data', head.cfg.train_dataloader.dataset.data_root]
        expected = {get_num_classes(part) for _, part in iter_class_heads(head.cfg.model)}
    elif head.cfg.default_scope == 'mmdet':
        data = draw_instances(head.tmp_path)
    else:
        data = [*draw_label_maps(head.tmp_path), '--classes', *CLASSES]
    head.run_tool('create_config', head.leaf, *data, '--out', out)
    cfg = read_config(out)
    check_config(cfg, ('train_dataloader', 'val_dataloader'))
    assert {get_num_classes(part) for _, part in iter_class_heads(cfg.model)} == expected
    build_on_meta(cfg.model)


def new_classes(head: SimpleNamespace) -> None:
    number = 3 if head.cfg.default_scope == 'mmdet' and head.name != 'panoptic_fpn' else 4
    assert find_class_rows(head.cfg, number)


def layer_decay(head: SimpleNamespace) -> None:
    head.cfg.optim_wrapper.constructor = 'LayerDecayConstructor'
    head.cfg.optim_wrapper.paramwise_cfg = dict(layer_decay_rate=0.5)
    groups = build_optim_wrapper(head.model, head.cfg.optim_wrapper).optimizer.param_groups
    rate = head.cfg.optim_wrapper.optimizer.lr
    members = [id(parameter) for group in groups for parameter in group['params']]
    assert len(members) == len(set(members))
    assert min(group['lr'] for group in groups) == pytest.approx(rate * 0.5**13)
    assert max(group['lr'] for group in groups) == rate


def tta(head: SimpleNamespace) -> None:
    if head.name in SUPPRESS_NOTHING:
        with pytest.raises(ValueError, match='--tta .* model.test_cfg has no nms'):
            augment_tests(head.cfg)
        return
    if head.name == 'panoptic_fpn':
        with pytest.raises(ValueError, match='--tta .* predicts panoptic segments'):
            augment_tests(head.cfg)
        return
    head.cfg.img_ratios = (1., )
    augment_tests(head.cfg)
    model = MODELS.build(head.cfg.model).eval()
    dataset = DATASETS.build(head.cfg.test_dataloader.dataset)
    found, = model.test_step(pseudo_collate([dataset[0]]))
    assert 'pred_instances' in found or 'pred_sem_seg' in found


def conversion(head: SimpleNamespace) -> None:
    if head.name in ('vitdet', 'eomt', 'eomt_semantic'):
        pytest.skip('files are recognised by models of timm, which has none of this size')
    source, out = head.tmp_path / 'trained.pth', head.tmp_path / 'converted.pth'
    state = head.model.state_dict()
    torch.save(dict(state_dict=state, meta={}), source)
    convert(str(source), out)
    converted = read_checkpoint(out)['state_dict']
    assert converted.keys() == state.keys()
    assert all(converted[key].equal(state[key]) for key in state)


def complexity(head: SimpleNamespace) -> None:
    model, _ = build_from_file(head.leaf)
    whole = sum_parts(list(iter_parts(model, 64, 96)))
    assert whole.parameters == count_parameters(head.model)
    assert whole.multiply_adds


def assert_same_features(model: nn.Module, change: Callable[[nn.Module], object]) -> None:
    """Check that a modification of a model in evaluation mode keeps inputs of its heads."""
    model.eval()
    image = torch.randn(1, 3, 64, 96, generator=torch.Generator().manual_seed(0))

    def get_inputs() -> list:
        maps = model.extract_feat(image)
        if isinstance(maps[0], QueryTokens):  # the head runs the last blocks
            maps = (getattr(model, 'panoptic_head', None) or model.decode_head)(maps)
        return tree_leaves(maps)

    with torch.no_grad():
        expected = get_inputs()
        change(model)
        torch.testing.assert_close(get_inputs(), expected, rtol=1e-3, atol=1e-4)


def fuse(head: SimpleNamespace) -> None:
    if hasattr(head.model, 'roi_head'):
        assert_same_features(head.model, fuse_model)
        return
    model = head.model.eval()
    data = batch(head.cfg, 'test_dataloader', model)

    def given() -> list:
        if head.cfg.default_scope == 'mmseg':
            return [sample.seg_logits.data for sample in model(**data, mode='predict')]
        return tree_leaves(model(**data, mode='tensor'))

    with torch.no_grad():
        expected = given()
        assert fuse_model(model)
        torch.testing.assert_close(given(), expected, rtol=1e-3, atol=1e-3)


def compiled(head: SimpleNamespace) -> None:
    """Compile with the kernels of eager mode."""
    head.monkeypatch.setattr(torch, 'compile', functools.partial(torch.compile, backend='eager'))
    assert_same_features(head.model, compile_parts)


def compile_parts(model: nn.Module) -> None:
    for part in find_columnar_modules(model):
        part.compile(dynamic=True)


def accumulation(head: SimpleNamespace) -> None:
    set_grad_accumulation(head.cfg, 2)
    head.cfg.optim_wrapper.optimizer.lr = 1e-3
    model = head.model.train()
    wrapper = build_optim_wrapper(model, head.cfg.optim_wrapper)
    wrapper.initialize_count_status(model, 0, 2)
    before = copy.deepcopy(model.state_dict())
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    for moved in (False, True):
        losses = model(**batch(head.cfg, 'train_dataloader', model, True), mode='loss')
        loss, _ = model.parse_losses(losses)
        assert loss.isfinite()
        wrapper.update_params(loss)
        after = model.state_dict()
        changed = [name for name in trained if not after[name].equal(before[name])]
        assert (len(changed) > 0.9 * len(trained)) if moved else not changed


def half_precision(head: SimpleNamespace) -> None:
    """Check that results of a fused model are float32 and near those of float32."""
    dataset = DATASETS.build(head.cfg.test_dataloader.dataset)
    data = pseudo_collate([dataset[0], dataset[1]])
    exact = head.model.eval()
    half = copy.deepcopy(exact)
    assert 'bfloat16' in fuse_model(half, torch.bfloat16)[-1]
    compute_in(half, torch.bfloat16)
    with torch.inference_mode():
        found, expected = (model.test_step(copy.deepcopy(data))[0] for model in (half, exact))
    if 'pred_sem_seg' in found:
        logits, wanted = found.seg_logits.data, expected.seg_logits.data
        assert logits.dtype == torch.float32
        # Segmenter's norm over the classes magnifies rounding: untrained, they are nearly equal
        assert (logits - wanted).norm() < 0.2 * wanted.norm()
        return
    if 'pred_panoptic_seg' in found:
        segments, wanted = found.pred_panoptic_seg.sem_seg, expected.pred_panoptic_seg.sem_seg
        assert (segments == wanted).float().mean() > 0.9
        return
    instances = found.pred_instances
    assert instances.scores.dtype == instances.bboxes.dtype == torch.float32
    assert len(instances) == len(expected.pred_instances)
    torch.testing.assert_close(
        instances.scores, expected.pred_instances.scores, rtol=0.1, atol=0.02)
    # boxes of masks are edges of pixels
    if len(instances) and head.name not in ('mask2former', 'pmt', 'eomt'):
        assert not instances.bboxes.equal(instances.bboxes.bfloat16().float())


TOOLS = {  # tool -> heads it always runs on, a detector and a segmenter; each head is among them
    create_config: ('cascade_mask_rcnn', 'segmenter'),
    new_classes: ('rtmdet_ins', 'linear'),
    layer_decay: ('dino', 'upernet'),
    tta: ('dino', 'mask_rcnn', 'segformer'),
    conversion: ('cascade_mask_rcnn', 'linear'),
    complexity: ('mask2former', 'segformer'),
    fuse: ('vitdet', 'sem_fpn', 'upernet'),
    compiled: ('mask_rcnn', 'mask2former_semantic'),
    accumulation: ('faster_rcnn', 'segmenter'),
    half_precision: ('rtmdet_ins', 'upernet'),
}
PAIRS = [
    pytest.param(
        tool, head, id=f'{head}-{tool.__name__}', marks=[] if head in heads else pytest.mark.slow)
    for head in LEAVES for tool, heads in TOOLS.items()
]


@pytest.mark.parametrize('tool, head', PAIRS, indirect=['head'])
def test_tool_supports_head(tool: Callable[[SimpleNamespace], None], head: SimpleNamespace) -> None:
    tool(head)


@pytest.mark.slow
@pytest.mark.parametrize('head', LEAVES, indirect=True)
def test_training_step_in_half_precision(head: SimpleNamespace) -> None:
    totals = []
    data = batch(head.cfg, 'train_dataloader', head.model, True)
    for half in (False, True):
        model = copy.deepcopy(head.model).train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.)
        wrapper = (Bfloat16OptimWrapper if half else OptimWrapper)(optimizer=optimizer)
        torch.manual_seed(0)
        with wrapper.optim_context(model):
            losses = model(**copy.deepcopy(data), mode='loss')
        assert {loss.dtype for loss in tree_leaves(losses) if loss.is_floating_point()
                } == {torch.float32}  # yapf: disable
        total, _ = model.parse_losses(losses)
        total.backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is None or parameter.grad.isfinite().all(), name
        totals.append(total.item())
    # Segmenter's norm over the classes magnifies rounding
    assert totals[1] == pytest.approx(totals[0], rel=0.2)
