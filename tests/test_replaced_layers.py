"""Layers that are replaced or have other tensors, which act as in timm's modules."""
from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.backbones import ARCHS, WITH_KERNELS, every_class_with_kernels, tiny
from helpers.modified_layers import (LoRA, check_equal, of_backbone, pair, replace_layers, results,
                                     shared)
from timm.layers import GluMlp
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.nn.utils import spectral_norm as spectral_norm_hook

from colonnade.backbones import CaiT, PlainViT, ResMLP, XCiT
from colonnade.backbones.attention_maps import mixing_rows


class Adapter(nn.Module):
    """Convolution followed by tanh, with the weight of the convolution."""

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        self.layer = layer

    @property
    def weight(self) -> Tensor:
        return self.layer.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).tanh()


def on_weights(touch: Callable[[nn.Module], Any]) -> Callable[[nn.Module], None]:
    """Return a function that modifies all linear layers and convolutions."""

    def run(backbone: nn.Module) -> None:
        for module in shared(backbone, backbone.named_modules()):
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                touch(module)

    return run


def replaced(name: str, make: Callable[[], nn.Module]) -> Callable[[nn.Module], None]:
    """Put another layer into every block that has one of this name."""

    def run(backbone: nn.Module) -> None:
        for block in backbone.blocks:
            parent, _, child = name.rpartition('.')
            if hasattr(block, name.split('.')[0]):
                setattr(block.get_submodule(parent), child, make().double())

    return run


def no_biases(backbone: nn.Module) -> None:
    for layer in backbone.modules():
        if isinstance(layer, nn.Linear):
            layer.bias = None


TOUCHES = {
    'LoRA': lambda backbone: replace_layers(backbone, nn.Linear, LoRA),
    'adapters': lambda backbone: replace_layers(backbone, nn.Conv2d, Adapter),
    'pruning': on_weights(lambda layer: prune.l1_unstructured(layer, 'weight', amount=0.5)),
    'weight norm': on_weights(
        lambda layer: parametrize.register_parametrization(layer, 'weight', nn.Tanh())),
    'spectral norm': on_weights(parametrizations.spectral_norm),
    'spectral norm by hooks': on_weights(spectral_norm_hook),
    'tanh GELU': lambda backbone: replace_layers(backbone, nn.GELU, lambda _: nn.GELU('tanh')),
    'ReLU': lambda backbone: replace_layers(backbone, nn.GELU, lambda _: nn.ReLU()),
    'no biases': no_biases,
}  # yapf: disable
OF_ONE_BACKBONE = [
    (XCiT, 'attn.qkv', lambda: nn.Linear(32, 96, bias=False)),
    (XCiT, 'attn.attn_drop', lambda: nn.Dropout(0.5)),
    (XCiT, 'attn', lambda: nn.Linear(32, 32)),
    (XCiT, 'local_mp.conv1', lambda: nn.Conv2d(32, 32, 3, padding=2, dilation=2, groups=32)),
    (XCiT, 'local_mp.conv2', lambda: nn.Conv2d(32, 32, 3, padding=1)),
    (XCiT, 'local_mp.conv1',
     lambda: nn.Conv2d(32, 32, 3, padding=1, groups=32, padding_mode='circular')),
    (XCiT, 'local_mp.conv1', lambda: nn.Conv2d(32, 32, 5, padding=2, groups=32)),
    (XCiT, 'local_mp.bn', lambda: nn.InstanceNorm2d(32, affine=True)),
    (XCiT, 'drop_path3', lambda: nn.Dropout(0.5)),
    (XCiT, 'mlp', lambda: GluMlp(32, 64)),
    (XCiT, 'norm2', lambda: nn.RMSNorm(32)),
    (CaiT, 'attn', lambda: nn.Linear(32, 32)),
    (CaiT, 'attn.proj_drop', lambda: nn.Dropout(0.5)),
    (CaiT, 'attn.attn_drop', lambda: nn.Dropout(0.5)),
    (CaiT, 'attn.proj_l', lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh())),
    (CaiT, 'mlp', lambda: GluMlp(32, 64)),
    (CaiT, 'mlp.drop1', lambda: nn.Dropout(0.5)),
    (CaiT, 'drop_path', lambda: nn.Dropout(0.5)),
    (ResMLP, 'mlp_channels.norm', lambda: nn.LayerNorm(128)),
    (ResMLP, 'norm2', lambda: nn.LayerNorm(32)),
    (ResMLP, 'drop_path', lambda: nn.Dropout(0.5)),
    (ResMLP, 'linear_tokens', lambda: nn.Sequential(nn.Linear(64, 64), nn.Tanh())),
]


@every_class_with_kernels
@pytest.mark.parametrize('touch', TOUCHES.values(), ids=TOUCHES)
def test_replaced_layers(cls: type, touch: Callable) -> None:
    check_equal(cls, touch)


@pytest.mark.parametrize(
    'cls, name, make',
    OF_ONE_BACKBONE,
    ids=[f'{cls.__name__}-{name}' for cls, name, _ in OF_ONE_BACKBONE])
def test_layer_of_other_type(cls: type, name: str, make: Callable) -> None:
    check_equal(cls, replaced(name, make))


class Halved(Tensor):
    """A tensor that stores half of its values; nothing but linear layers can use it."""

    @staticmethod
    def __new__(cls, values: Tensor) -> Halved:
        made = torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=values.dtype)
        made.half_of_it = values / 2
        return made

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ['half_of_it'], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], *_: object) -> Halved:
        return Halved(inner['half_of_it'] * 2)

    @classmethod
    def __torch_dispatch__(cls,
                           function: Callable,
                           types: object,
                           args: tuple = (),
                           kwargs: dict | None = None) -> Any:
        aten = torch.ops.aten
        if function in (aten.t.default, aten.detach.default):
            if function is aten.detach.default:
                return Halved(args[0].half_of_it * 2)
            return args[0].half_of_it.t() * 2
        raise TypeError(f'{function} is not for weights of this kind')


@every_class_with_kernels
def test_tensor_subclass_weights(cls: type) -> None:
    ours, theirs = pair(cls)
    for model in (ours, theirs):
        for layer in of_backbone(model).blocks.modules():
            if type(layer) is nn.Linear:
                layer.weight = nn.Parameter(Halved(layer.weight.detach()), requires_grad=False)
    for a, b in zip(results(ours, training=False), results(theirs, training=False), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.skipif(
    torch.backends.quantized.engine == 'none', reason='torch has no quantized layers here')
@every_class_with_kernels
@torch.no_grad()
def test_dynamic_quantization(cls: type) -> None:
    backbone = tiny(cls, ARCHS[cls] | dict(depth=2), out_indices=(0, 1)).eval()
    quantized = torch.ao.quantization.quantize_dynamic(backbone, {nn.Linear}, dtype=torch.qint8)
    image, called = torch.randn(2, 3, 72, 104), set()
    kind = torch.ao.nn.quantized.dynamic.Linear
    layers = {name: m for name, m in quantized.named_modules() if type(m) is kind}
    for name, layer in layers.items():
        layer.register_forward_hook(lambda *_, name=name: called.add(name))
    for a, b in zip(quantized(image), backbone(image), strict=True):
        assert not torch.equal(a, b)
        assert (a - b).abs().max() < 0.1 * b.abs().max()
    of_a_block = {XCiT: 4, CaiT: 6, ResMLP: 3, PlainViT: 4}[cls]
    assert called == set(layers) and len(called) == 2 * of_a_block


@pytest.mark.parametrize(
    'touch', [
        LoRA,
        lambda layer: prune.l1_unstructured(layer, 'weight', amount=0.5),
        lambda layer: parametrize.register_parametrization(layer, 'weight', nn.Tanh()),
    ],
    ids=['LoRA', 'pruning', 'parametrized'])
@pytest.mark.parametrize('size, token_mixing', [((64, 64), 'resample'), ((72, 104), 'resample'),
                                                ((72, 104), 'window')])
@torch.no_grad()
def test_modified_token_mixing_on_any_grid(size: tuple[int, int], token_mixing: str,
                                           touch: Callable) -> None:
    backbone = tiny(ResMLP, token_mixing=token_mixing).double().eval()
    merged, image = copy.deepcopy(backbone), torch.randn(2, 3, *size, dtype=torch.float64)
    before = backbone(image)[-1]
    for block, plain in zip(backbone.blocks, merged.blocks, strict=True):
        block.linear_tokens = touch(block.linear_tokens)
        layer, offset = plain.linear_tokens, block.linear_tokens(torch.zeros(64).double())
        layer.bias.copy_(offset)
        layer.weight.copy_((block.linear_tokens(torch.eye(64).double()) - offset).T)
    for a, b in zip(backbone(image), merged(image), strict=True):
        torch.testing.assert_close(a, b)
    assert not torch.allclose(backbone(image)[-1], before)
    torch.testing.assert_close(mixing_rows(backbone, 1), mixing_rows(merged, 1))


def test_attention_with_lora_is_bounded() -> None:
    backbone, sizes = tiny(CaiT, attn_block_size=8, out_indices=(0, )), []
    attn = backbone.blocks[0].attn
    attn.qkv, attn.proj = LoRA(attn.qkv), LoRA(attn.proj)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t,
                                                  lambda t: t):
        backbone(torch.randn(1, 3, 512, 512))[0].sum().backward()
    assert max(sizes) < 4 * 1024**2


@pytest.mark.parametrize('cls, training', [
    pytest.param(
        cls, training, marks=[] if training and cls in (XCiT, PlainViT) else pytest.mark.slow)
    for cls in WITH_KERNELS for training in (False, True)
])
def test_modified_backbones_compile(cls: type, training: bool) -> None:
    torch._dynamo.reset()
    backbone, _ = pair(cls)
    replace_layers(backbone, nn.Linear, LoRA)
    compiled = copy.deepcopy(backbone)
    compiled.compile(backend='eager', dynamic=True)
    for a, b in zip(
            results(compiled, training=training), results(backbone, training=training),
            strict=True):
        torch.testing.assert_close(a, b)
