"""Print the versions and the hardware that matter for a bug report.

    colonnade env
"""
from __future__ import annotations

import platform
import sys
from importlib import metadata
from pathlib import Path

#: name that is shown -> distributions that provide it, the first installed one is shown
PACKAGES = {
    'torch': ('torch', ), 'torchvision': ('torchvision', ), 'timm': ('timm', ),
    'mmengine': ('onedl-mmengine', 'mmengine'),
    'mmcv': ('onedl-mmcv', 'mmcv', 'mmcv-lite'),
    'mmdet': ('onedl-mmdetection', 'mmdet'),
    'mmseg': ('onedl-mmsegmentation', 'mmsegmentation'),
    'numpy': ('numpy', ), 'opencv': ('opencv-python-headless', 'opencv-python'),
    'onnxruntime': ('onnxruntime', 'onnxruntime-gpu'), 'peft': ('peft', ),
}  # yapf: disable


def find_version(distributions: tuple[str, ...]) -> str:
    """Return version and name of the first installed distribution, or ``none``."""
    for name in distributions:
        try:
            return f'{metadata.version(name)} ({name})'
        except metadata.PackageNotFoundError:
            continue
    return 'none'


def list_hardware() -> dict[str, str]:
    """Return torch's view of processor and GPUs."""
    import torch  # takes seconds
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        'CUDA of torch': str(torch.version.cuda or 'none'),
        'GPUs': ', '.join(gpus) or 'none',
        'CPU': f'{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}, '
               f'{torch.get_num_threads()} threads',
    }  # yapf: disable


def main() -> None:
    """Print a line per package and device."""
    rows = {'colonnade': f'{metadata.version("colonnade")} in {Path(__file__).parents[1]}',
            'Python': sys.version.split()[0], 'platform': platform.platform()}  # yapf: disable
    rows |= {name: find_version(names) for name, names in PACKAGES.items()} | list_hardware()
    width = max(map(len, rows))
    for name, text in rows.items():
        print(f'{name:{width}}  {text}')


if __name__ == '__main__':
    main()
