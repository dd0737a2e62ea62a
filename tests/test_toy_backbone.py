"""Minimal third-party backbone in weights, tools and configs."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import NO_WORKERS, ROOT
from helpers.backbones import tiny
from helpers.toy_backbone import Toy

from colonnade.backbones.kernels.folding import FusedError, fold_norm
from colonnade.evaluation.benchmark.candidates import build_backbone
from colonnade.weights.files import read_checkpoint

CONFIG = """
_base_ = {base!r}
model = dict(
    backbone=dict(type='Toy', arch=dict(_delete_=True, embed_dim=32, depth=4, patch_size=16)),
    neck=dict(in_channels=32))
train_cfg = dict(max_iters=2, val_interval=2)
train_dataloader = dict(batch_size=2)
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A segmenter on the toy, as a diff of another backbone's."""
    base = ROOT / 'configs/sem_fpn/xcit_nano_12_p16_slim_shapes.py'
    path = tmp_path / 'toy.py'
    path.write_text(CONFIG.format(base=str(base)))
    return path


def test_benchmark_finds_toy() -> None:
    backbone = build_backbone('Toy:tiny')
    theirs = backbone.timm_module(64).eval()
    theirs.load_state_dict({**theirs.state_dict(), **backbone.state_dict()})
    image = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        maps = theirs.forward_intermediates(
            image, indices=[11], intermediates_only=True, norm=False)
        torch.testing.assert_close(backbone.eval()(image)[-1], maps[0])


@torch.no_grad()
def test_fusible_blocks_need_two_methods() -> None:
    backbone, image = tiny(Toy).eval(), torch.randn(1, 3, 32, 32)
    expected = backbone(image)
    with pytest.raises(FusedError, match=r'Toy cannot be fused: its blocks have no fuse\(\)'):
        backbone.fuse()
    for block in backbone.blocks:
        block.fuse = lambda dtype, block=block: fold_norm(block.norm2, block.mlp.fc1)
        block.get_modified_layer = lambda: None
    torch.testing.assert_close(backbone.fuse()(image), expected)


def test_complexity_counts_toy(config: Path, run_tool: Callable,
                               capsys: pytest.CaptureFixture[str]) -> None:
    run_tool('complexity', config, '--size', 64, 64)
    parameters = sum(p.numel() for p in tiny(Toy, dict(embed_dim=32, depth=4, patch_size=16))
                     .parameters()) / 1e6  # yapf: disable
    assert f'{"backbone":24} {parameters:10.3f} M' in capsys.readouterr().out


def test_toy_weights_convert_and_train(config: Path, shapes: Path, tmp_path: Path,
                                       run_tool: Callable,
                                       capsys: pytest.CaptureFixture[str]) -> None:
    backbone = tiny(Toy, dict(embed_dim=32, depth=4, patch_size=16))
    published = {**backbone.timm_module(64, 5).state_dict(), **backbone.state_dict()}
    torch.save(published, tmp_path / 'timms.pth')
    run_tool('convert_checkpoint', tmp_path / 'timms.pth', tmp_path / 'ours.pth')
    assert ': Toy; ' in capsys.readouterr().out
    assert read_checkpoint(tmp_path /
                           'ours.pth')['state_dict'].keys() == backbone.state_dict().keys()

    init_cfg = 'model.backbone.init_cfg.'
    run_tool('train', config, '--data-root', shapes / 'ade', '--work-dir', tmp_path / 'run',
             '--cfg-options', f'{init_cfg}type=Pretrained',
             f'{init_cfg}checkpoint={tmp_path}/ours.pth', *NO_WORKERS)  # yapf: disable
    trained = read_checkpoint(tmp_path / 'run/iter_2.pth')['state_dict']
    assert {f'backbone.{key}' for key in backbone.state_dict()} <= trained.keys()


def test_describes_file_of_other_size(tmp_path: Path) -> None:
    state = tiny(Toy).state_dict()
    with pytest.raises(ValueError, match='1 of another shape: patch_embed.proj.bias'):
        tiny(Toy).load_state_dict({**state, 'patch_embed.proj.bias': torch.zeros(3)})
    assert tiny(Toy).describe(state) == 'a custom Toy of embed_dim 32, depth 4, patch_size 8'
