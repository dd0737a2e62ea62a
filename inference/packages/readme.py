"""The README of a package: a model card as hubs show it."""
from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from huggingface_hub import EvalResult, ModelCardData
from mmengine.config import Config

from colonnade.runtime.sanitize import printable

from .metadata import Card

PIPELINE_TAGS = dict(
    boxes='object-detection', masks='image-segmentation', labels='image-segmentation')
TASKS = dict(
    boxes='An object detector. It finds boxes of {number} classes.',
    masks='An instance segmenter. It finds boxes and masks of {number} classes.',
    labels='A semantic segmenter. It gives each pixel one of {number} classes.')
TAGS = dict(
    boxes=['object-detection'],
    masks=['object-detection', 'instance-segmentation'],
    labels=['semantic-segmentation'])
TRAINING = dict(
    backbone_from='weights that the backbone began from',
    optimizer='optimizer',
    lr='learning rate',
    weight_decay='weight decay',
    epochs='epochs',
    max_epochs='planned epochs',
    iterations='iterations',
    max_iters='planned iterations',
    images_per_process='images a step, in each process',
    averaged_weights='weights are a moving average')


def readme_text(card: Card, config: Config, notes: str = '') -> str:
    """The README of a package.

    Args:
        card: What is said of the model.
        config: Of the package.
        notes: Markdown, shown as a section of its own.
    """
    sections = [
        f'---\n{front_matter(card, config)}\n---\n', f'# {card.name}\n',
        *introduction(card, config), *use(card), *preprocessing(card), *classes(card),
        *results(card), *training(card)
    ]
    if notes.strip():
        sections += ['## Notes\n', f'{notes.strip()}\n']
    return '\n'.join([*sections, *limits(card)])


def backbone_of(config: Config) -> str:
    """What carries the model: ``XCiT (nano_12_p16)``."""
    backbone: Any = config.model.get('backbone') or {}
    kind, arch = backbone.get('type', 'an own backbone'), backbone.get('arch')
    return f'{kind} ({arch})' if arch else str(kind)


def front_matter(card: Card, config: Config) -> str:
    """What a hub reads, in YAML."""
    found = [
        EvalResult(
            task_type=PIPELINE_TAGS[card.kind],
            dataset_type='own',
            dataset_name=card.data or 'the test data of its maker',
            metric_type=key,
            metric_value=value) for key, value in card.metrics.items() if value is not None
    ]
    data = ModelCardData(
        library_name='colonnade',
        pipeline_tag=PIPELINE_TAGS[card.kind],
        license=card.license,
        tags=['colonnade', config.default_scope, *TAGS[card.kind]],
        model_name=card.name if found else None,
        eval_results=found or None)
    return data.to_yaml()


def introduction(card: Card, config: Config) -> Iterator[str]:
    """What the model is."""
    yield f'{TASKS[card.kind].format(number=len(card.classes))}\n'
    kind = config.model.type
    article = 'an' if kind[0] in 'AEIOU' else 'a'
    yield (f'It is {article} `{kind}` on {backbone_of(config)}, with '
           f'{card.parameters / 1e6:.1f} million parameters.\n')


def use(card: Card) -> Iterator[str]:
    """How to load it and what with."""
    yield '## Use\n'
    yield 'With Colonnade installed, in this folder:\n'
    yield ('```python\nimport colonnade\n\n'
           "model = colonnade.load('.')  # the folder of this file\n"
           "result = model.predict('image.jpg')\n"
           "print(result)\nresult.draw().save('drawn.png')\n```\n")
    made = ', '.join(f'{name} {version}' for name, version in card.versions.items())
    yield f'Made with {made}. `model.json` has the SHA-256 of both files.\n'


def preprocessing(card: Card) -> Iterator[str]:
    """How images are resized and normalised."""
    yield '## Preprocessing\n'
    yield (
        'Colonnade does this by itself. Other programs need to know it. Mean and deviation are of '
        'values from 0 to 255.\n')
    yield from table(('step', 'value'), card.preprocessing)


def classes(card: Card) -> Iterator[str]:
    """Their names, by label."""
    yield '## Classes\n'
    yield 'Labels count from 0.\n'
    yield from table(('label', 'class'), dict(enumerate(card.classes)))


def results(card: Card) -> Iterator[str]:
    """The metrics, and who computed them."""
    yield '## Results\n'
    if not card.metrics:
        yield 'None were given.\n'
        return
    data = f' on {card.data}' if card.data else ' on the test data of its maker'
    yield (f'Computed by the maker of this model{data}, with `colonnade test`. mAP is from 0 to 1, '
           'IoU and accuracy are in percent.\n')
    values = {key: '–' if value is None else f'{value:.4g}' for key, value in card.metrics.items()}
    yield from table(('metric', 'value'), values)


def training(card: Card) -> Iterator[str]:
    """What the config says of it."""
    yield '## Training\n'
    known = {text: card.training[key] for key, text in TRAINING.items() if key in card.training}
    if not known:
        yield 'Nothing is known of it.\n'
        return
    yield ('Epochs and iterations are those of the weights; the rest is from the config. Data and '
           'hardware are not recorded.\n')
    yield from table(('setting', 'value'), known)


def limits(card: Card) -> Iterator[str]:
    """What nobody should expect."""
    yield '## Limits\n'
    yield '- It knows the classes above alone. Anything else is missed, or taken for one of them.'
    if card.kind == 'labels':
        yield '- Each pixel gets a class, also where none fits.'
    else:
        yield '- Scores rank predictions. They are no calibrated probabilities.'
    yield '- Images unlike those of its training may give worse results.'
    if card.license is None:
        yield '- No licence was given: ask the maker before you use it.'
    yield ''


def table(head: tuple[str, str], rows: dict[Any, Any]) -> Iterator[str]:
    """A table of two columns."""
    yield f'| {head[0]} | {head[1]} |\n|---|---|'
    for key, value in rows.items():
        yield f'| {escaped(key)} | {escaped(value)} |'
    yield ''


def escaped(value: Any) -> str:
    """A value as a cell of a table shows it."""
    return re.sub(r'([\\|<>*_`\[\]])', r'\\\1', ' '.join(printable(shown(value)).split()))


def shown(value: Any) -> str:
    """A value of a card in words."""
    if isinstance(value, dict):
        return ', '.join(f'{key} {shown(item)}' for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ' × '.join(map(str, value)) if len(value) == 2 else ', '.join(map(str, value))
    return str(value)
