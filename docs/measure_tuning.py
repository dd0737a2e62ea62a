"""Measure memory and time of a training step for each choice of ``colonnade train --tune``.

    python docs/measure_tuning.py

Prints a Markdown table of Semantic FPN on small backbones: two images of 512 x 512, float32.
Needs ``peft``.
"""
from __future__ import annotations

import re
import subprocess
import sys

CHOICES = ('all', 'lora', 'last:4', 'head')
CONFIGS = ('xcit_small_12_p16', 'cait_xxs24', 'resmlp_s12', 'simplified_vit_small_12_p16',
           'vit_small_patch16_dinov3')  # yapf: disable
MEMORY, SECONDS = r'  sum +([\d.]+) GiB', r'an iteration +([\d.]+) s'


def estimate(config: str, choice: str) -> str:
    """Return GiB and seconds of a step."""
    command = [sys.executable, '-m', 'colonnade', 'train', f'sem_fpn/{config}_80k_ade20k',
               '--estimate', '--tune', choice]  # yapf: disable
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    memory, seconds = (re.search(pattern, text) for pattern in (MEMORY, SECONDS))
    assert memory and seconds, text
    return f'{memory[1]}, {float(seconds[1]):.1f}'


if __name__ == '__main__':
    print(f'| backbone | {" | ".join(f"`{choice}`" for choice in CHOICES)} |')
    print('|---' * (1 + len(CHOICES)) + '|')
    for name in CONFIGS:
        cells = [estimate(name, choice) for choice in CHOICES]
        print(f'| `{name}` | {" | ".join(cells)} |', flush=True)
