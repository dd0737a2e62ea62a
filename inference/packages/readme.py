"""README of a package: a model card in the format of Hugging Face."""
from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from huggingface_hub import EvalResult, ModelCardData
from mmengine.config import Config

from colonnade.runtime.sanitize import printable

from .package import PackageMetadata

TASKS = dict(
    boxes='An object detector that predicts boxes of',
    masks='An instance segmenter that predicts boxes and masks of',
    labels='A semantic segmenter that assigns each pixel one of',
    panoptic='A panoptic segmenter that divides images into objects and regions of')
PIPELINE_TAGS = dict(
    boxes='object-detection',
    masks='image-segmentation',
    labels='image-segmentation',
    panoptic='image-segmentation')
TAGS = dict(
    boxes=['object-detection'],
    masks=['object-detection', 'instance-segmentation'],
    labels=['semantic-segmentation'],
    panoptic=['panoptic-segmentation'])
TRAINING = dict(
    backbone_from='pretrained weights of the backbone',
    optimizer='optimizer',
    lr='learning rate',
    weight_decay='weight decay',
    epochs='epochs',
    max_epochs='planned epochs',
    iterations='iterations',
    max_iters='planned iterations',
    images_per_process='batch size per process',
    averaged_weights='weights are a moving average')
TEMPLATE = '''---
{front_matter}
---

# {name}

{task} {num_classes} classes.

It is {article} `{model}` on {backbone}, with {parameters:.1f} million parameters.

## Use

With Colonnade installed, run in this folder:

```python
import colonnade

model = colonnade.load('.')  # the folder of this file
result = model.predict('image.jpg')
print(result)
result.draw().save('drawn.png')
```

Made with {versions}. `model.json` contains the SHA-256 of config and weights.

## Preprocessing

Colonnade does this by itself; other programs need it. Mean and standard deviation are for values
from 0 to 255.

{preprocessing}

## Classes

Labels start at 0.

{classes}

## Results

{results}

## Training

{training}

{notes}## Limitations

- The model only knows the classes above. Other objects are missed or assigned to one of them.
{score_limit}
- Results may be worse on images that differ from the training data.
{license_limit}'''


def build_readme(metadata: PackageMetadata, config: Config, notes: str = '') -> str:
    """Return the README of a package, with ``notes`` in Markdown as a section."""
    backbone: Any = config.model.get('backbone') or {}
    kind, arch = backbone.get('type', 'a custom backbone'), backbone.get('arch')
    data = metadata.data or 'the test data of its author'
    results, training = 'No metrics are available.', 'No settings are available.'
    if metadata.metrics:
        values = {key: '–' if value is None else f'{value:.4g}'
                  for key, value in metadata.metrics.items()}  # yapf: disable
        results = (f'Computed by the author of this model on {data}, with `colonnade test`. mAP is '
                   'from 0 to 1; IoU, accuracy and PQ are in percent.\n\n'
                   f'{build_table("metric", "value", values)}')
    known = {text: metadata.training[key] for key, text in TRAINING.items()
             if key in metadata.training}  # yapf: disable
    if known:
        training = ('Epochs and iterations are those of the weights, other settings are from the '
                    f'config.\n\n{build_table("setting", "value", known)}')
    score_limit = '- Scores rank predictions. They are not calibrated probabilities.'
    if metadata.kind == 'labels':
        score_limit = '- Each pixel gets a class, even if none fits.'
    elif metadata.kind == 'panoptic':
        score_limit = '- Each pixel belongs to at most one segment, so objects do not overlap.'
    return TEMPLATE.format(
        front_matter=build_front_matter(metadata, config, data),
        name=metadata.name,
        task=TASKS[metadata.kind],
        num_classes=len(metadata.classes),
        article='an' if config.model.type[0] in 'AEIOU' else 'a',
        model=config.model.type,
        backbone=f'{kind} ({arch})' if arch else kind,
        parameters=metadata.parameters / 1e6,
        versions=', '.join(f'{name} {version}' for name, version in metadata.versions.items()),
        preprocessing=build_table('step', 'value', metadata.preprocessing),
        classes=build_table('label', 'class', dict(enumerate(metadata.classes))),
        results=results,
        training=training,
        notes=f'## Notes\n\n{notes.strip()}\n\n' if notes.strip() else '',
        score_limit=score_limit,
        license_limit='' if metadata.license else
        '- No license is specified: ask the author before you use the model.\n')


def build_front_matter(metadata: PackageMetadata, config: Config, data: str) -> str:
    """Return the YAML that a hub reads."""
    results = [
        EvalResult(
            task_type=PIPELINE_TAGS[metadata.kind],
            dataset_type='own',
            dataset_name=data,
            metric_type=key,
            metric_value=value) for key, value in metadata.metrics.items() if value is not None
    ]
    return ModelCardData(
        library_name='colonnade',
        pipeline_tag=PIPELINE_TAGS[metadata.kind],
        license=metadata.license,
        tags=['colonnade', config.default_scope, *TAGS[metadata.kind]],
        model_name=metadata.name if results else None,
        eval_results=results or None).to_yaml()


def build_table(key_title: str, value_title: str, rows: Mapping[Any, Any]) -> str:
    """Return a Markdown table of two columns."""
    lines = [f'| {key_title} | {value_title} |', '|---|---|']
    for row in rows.items():
        cells = (' '.join(printable(format_value(value)).split()) for value in row)
        escaped = (re.sub(r'([\\|<>*_`\[\]])', r'\\\1', cell) for cell in cells)
        lines.append(f'| {" | ".join(escaped)} |')
    return '\n'.join(lines)


def format_value(value: Any) -> str:
    """Format a value of the metadata."""
    if isinstance(value, dict):
        return ', '.join(f'{key} {format_value(item)}' for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return (' × ' if len(value) == 2 else ', ').join(map(str, value))
    return str(value)
