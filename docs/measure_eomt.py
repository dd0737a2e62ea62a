"""Compare EoMT with its plain form: timm's blocks on all tokens, under a mask of all pairs.

    python docs/measure_eomt.py
    python docs/measure_eomt.py --arch vit_base_patch14_reg4_dinov2 --sizes 640 --rounds 3

All forms share one set of weights, and their predictions are compared first. They run in turns:
``eval`` is a forward pass, ``train`` is one with masked attention, and its backward pass. ``fused``
is our form as ``colonnade predict`` runs it. Memory is the peak above the weights, in a process of
its own.
"""
from __future__ import annotations

import argparse
import statistics
import time
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.backbones.plain_vit.backbone import PlainViT
from colonnade.evaluation.benchmark.machine import describe_machine
from colonnade.evaluation.benchmark.measurement import MIB, measure_peak, run_in_new_process
from colonnade.heads.eomt_head import EoMTHead
from colonnade.models.fusion import fuse

NUM_BLOCKS = 3
FORMS = ('ours', 'fused', 'plain')


class PlainForm(nn.Module):
    """EoMT as published: the mask is ``(B, heads, T, T)`` for T queries and tokens.

    Args:
        backbone: Backbone whose weights it uses.
        head: Head whose weights it uses.
        size: Height and width of the images.
    """

    def __init__(self, backbone: PlainViT, head: EoMTHead, size: tuple[int, int]) -> None:
        super().__init__()
        self.vit = backbone.build_timm_module(size)
        self.vit.load_state_dict(backbone.state_dict(), strict=False)
        self.head, self.grid = head, (size[0] // 16, size[1] // 16)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return the logits of classes and masks of the last prediction."""
        vit, head = self.vit, self.head
        x = vit.norm_pre(vit._pos_embed(vit.patch_embed(images)))
        num_queries, num_prefix, outputs = len(head.q.weight), vit.num_prefix_tokens, []
        for index, block in enumerate(vit.blocks):
            mask = None
            if index == len(vit.blocks) - NUM_BLOCKS:
                x = torch.cat((head.q.weight.expand(len(x), -1, -1), x), 1)
            if index >= len(vit.blocks) - NUM_BLOCKS and self.training:
                outputs += self.predict(x, num_queries, num_prefix)
                length = x.shape[1]
                mask = torch.ones(len(x), length, length, dtype=torch.bool)
                resized = F.interpolate(outputs[-1].detach(), self.grid, mode='bilinear')
                mask[:, :num_queries, num_queries + num_prefix:] = resized.flatten(2) > 0
                mask = mask[:, None].expand(-1, block.attn.num_heads, -1, -1)
            x = block(x, attn_mask=mask)
        return outputs + self.predict(x, num_queries, num_prefix)

    def predict(self, x: Tensor, num_queries: int, num_prefix: int) -> list[Tensor]:
        """Return the logits of classes and masks of tokens."""
        x = self.vit.norm(x)
        patches = x[:, num_queries + num_prefix:].mT.unflatten(2, self.grid)
        return [*self.head.predict_masks(x[:, :num_queries], patches)]


class OurForm(nn.Module):
    """Backbone and head of the configs.

    Args:
        backbone: Backbone that leaves its last blocks to the head.
        head: The head.
    """

    def __init__(self, backbone: PlainViT, head: EoMTHead) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return the logits of classes and masks of all predictions."""
        classes, masks = self.head(self.backbone(images))
        return [each for pair in zip(classes, masks, strict=True) for each in pair]


def build(form: str, arch: str, side: int, *, train: bool) -> nn.Module:
    """Build a form with the same random weights each time."""
    torch.manual_seed(0)
    backbone = PlainViT(
        arch, patch_size=16, img_size=side, norm_features=True, num_query_blocks=NUM_BLOCKS,
        drop_path_rate=0.)  # yapf: disable
    head = EoMTHead(backbone.embed_dim)
    if form == 'plain':
        return PlainForm(backbone, head, (side, side)).train(train)
    model = OurForm(backbone, head).train(train)
    if form == 'fused':
        fuse(model)
    return model


def run(model: nn.Module, images: Tensor) -> list[Tensor]:
    """Run a forward pass, and in training a backward pass."""
    with torch.set_grad_enabled(model.training):
        outputs = model(images)
        if model.training:
            model.zero_grad()
            sum(output.square().mean() for output in outputs).backward()
    return outputs


def measure_memory(form: str, arch: str, side: int, train: bool) -> float:
    """Return the peak MiB above the weights and gradients."""
    model, images = build(form, arch, side, train=train), torch.rand(1, 3, side, side)
    peak = measure_peak(partial(run, model, images))
    return (peak - sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)) / MIB


def compare(values: dict[str, float], unit: str, digits: int) -> str:
    """Format the value of each form and its ratio to the plain one; ``–`` if not measured."""
    cells = []
    for form in FORMS:
        text = f'{values[form]:.{digits}f} {unit}' if form in values else '–'
        if form in values and form != 'plain':
            text += f' ({values[form] / values["plain"]:.2f})'
        cells.append(text)
    return ' | '.join(cells)


def measure(arch: str, side: int, rounds: int, *, train: bool) -> str:
    """Return a row of the table."""
    forms = [form for form in FORMS if not (train and form == 'fused')]
    models = {form: build(form, arch, side, train=train) for form in forms}
    images = torch.rand(1, 3, side, side)
    outputs = [[output.detach() for output in run(model, images)] for model in models.values()]
    errors = [((a - b).abs().max() / b.abs().max()).item() for others in outputs[:-1]
              for a, b in zip(others, outputs[-1], strict=True)]
    del outputs
    seconds: dict[str, list[float]] = {form: [] for form in forms}
    for _ in range(rounds):
        for form, model in models.items():
            started = time.perf_counter()
            run(model, images)
            seconds[form].append(time.perf_counter() - started)
    del models
    medians = {form: statistics.median(values) for form, values in seconds.items()}
    memory = {form: run_in_new_process(measure_memory, form, arch, side, train) for form in forms}
    return (f'| {"train" if train else "eval"} {side}² | {compare(medians, "s", 2)} | '
            f'{compare(memory, "MiB", 0)} | {max(errors):.0e} |')


def main() -> None:
    """Print a row for each mode and size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--arch', default='vit_small_patch14_reg4_dinov2')
    parser.add_argument('--sizes', nargs='+', type=int, default=[512, 640, 1280])
    parser.add_argument('--train-sizes', nargs='*', type=int, default=[512, 640])
    parser.add_argument('--rounds', type=int, default=5)
    args = parser.parse_args()
    print(*describe_machine('cpu'), f'{args.arch}, {torch.get_num_threads()} threads', sep='\n')
    print('| | time: ours | fused | plain | memory: ours | fused | plain | difference |')
    print('|---|---|---|---|---|---|---|---|')
    for train, sizes in ((False, args.sizes), (True, args.train_sizes)):
        for side in sizes:
            print(measure(args.arch, side, args.rounds, train=train), flush=True)


if __name__ == '__main__':
    main()
