"""Table of rules: each rule is used and documented, and each finding names one."""
from __future__ import annotations

import ast
import copy
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOMS, ROOT, config
from mmengine.config import Config

from colonnade.datasets.validation.coco_files import Usage, check_instances
from colonnade.datasets.validation.fast_checks import are_annotations_valid
from colonnade.datasets.validation.validation_report import Report
from colonnade.recipes.config_report import examine
from colonnade.settings.checks import all_checks
from colonnade.settings.findings import Finding
from colonnade.settings.rules import RULES, Rule
from colonnade.visualization.dataset_browser.image_scan import ISLAND, MAX_BITS
from colonnade.visualization.dataset_browser.issues import MAX_UNLABELED, MIN_HUGE, MIN_ISLANDS
from colonnade.visualization.dataset_browser.statistics import MIN_PER_CLASS

MAKERS = ('Finding', 'Case', 'Issue')  # the first argument of each is a rule


def iter_modules() -> Iterator[tuple[Path, ast.Module]]:
    for room in ROOMS:
        for path in (ROOT / room).rglob('*.py'):
            if path != ROOT / 'settings/rules.py':
                yield path, ast.parse(path.read_text())


def test_each_finding_in_code_names_a_rule() -> None:
    """This also holds for code without tests; the class checks names that are built at runtime."""
    for path, tree in iter_modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and \
                    node.func.id in MAKERS and isinstance(node.args[0], ast.Constant):
                assert node.args[0].value in RULES, f'{path}:{node.lineno}'
    with pytest.raises(ValueError, match="got 'no-rule'"):
        Finding('no-rule', 'a text')


def test_each_rule_is_used() -> None:
    texts = {node.value for _, tree in iter_modules() for node in ast.walk(tree)
             if isinstance(node, ast.Constant)}  # yapf: disable
    built = {f'unknown-{kind}' for kind in ('image', 'category')}
    built |= {f'repeated-{kind}-id' for kind in ('image', 'annotation')}
    assert RULES.keys() == (texts | built) & RULES.keys()


@pytest.mark.parametrize('name', RULES)
def test_each_rule_is_documented(name: str) -> None:
    rule = RULES[name]
    page, _, anchor = rule.page.partition('#')
    headings = re.findall(r'(?m)^#+ (.*)$', (ROOT / 'docs' / page).read_text(encoding='utf-8'))
    assert anchor in [re.sub(r'[^\w ]', '', each).lower().replace(' ', '-') for each in headings]
    assert re.fullmatch(r'[a-z0-9]+(-[a-z0-9]+)*', name)
    assert rule.title and not rule.title.endswith('.') and rule.title[:2] != rule.title[:2].title()
    assert rule.severity == 'error' or rule.effect in ('none', 'meaning')


def test_texts_of_rules_match_limits_in_code() -> None:
    limits = [
        ('rare-class', MIN_PER_CLASS),
        ('rare-label', MIN_PER_CLASS),
        ('islands', MIN_ISLANDS),
        ('islands', ISLAND),
        ('huge-image', MIN_HUGE // 10**6),
        ('unlabelled-map', f'{MAX_UNLABELED:.0%}'),
        ('similar-images', MAX_BITS),
        ('split-images', MAX_BITS),
    ]
    for name, limit in limits:
        assert re.search(rf'\b{limit}(?!\w)', f'{RULES[name].title} {RULES[name].meaning}'), name


def test_custom_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule only needs a table row and a function, as documented in CONTRIBUTING."""

    def toy_problems(cfg: Config, _: tuple[str, ...]) -> Iterator[Finding]:
        if (depth := cfg.model.backbone.get('frozen_stages', -1)) > 0:
            yield Finding('toy', f'{depth} blocks are frozen', ('model.backbone.frozen_stages', ))

    monkeypatch.setitem(RULES, 'toy', Rule('warning', 'blocks that learn nothing'))
    monkeypatch.setattr(all_checks, 'CHECKS', (*all_checks.CHECKS, toy_problems))
    found = examine(config('sem_fpn'), cfg_options={'model.backbone.frozen_stages': 3})
    assert [str(each) for each in found if each.severity == 'warning'] == ['3 blocks are frozen']
    assert 'toy' not in [each.rule for each in examine(config('sem_fpn'))]


def test_json_round_trip_and_old_keys() -> None:
    finding = Finding('other-size', 'a is not b', ('a.jpg', ), id=3, effect='none')
    content = json.loads(json.dumps(finding.to_json()))
    assert Finding.from_json(content) == Finding('other-size', 'a is not b', ('a.jpg', ),
                                                 RULES['other-size'].fix, '3', 'none')
    assert content['kind'] == content['rule'] and content['advice'] == content['fix']
    assert content['says'] == content['fault'] == content['message']
    assert content['file'] == 'a.jpg' and content['severity'] == 'error'


COCO: dict[str, list[dict[str, Any]]] = dict(
    images=[dict(id=i, file_name=f'{i}.jpg', width=60, height=40) for i in (1, 2)],
    categories=[dict(id=i, name=f'class {i}') for i in (1, 2)],
    annotations=[
        dict(
            id=i,
            image_id=1 + i % 2,
            category_id=1,
            bbox=[1, 2, 30.5, 20],
            area=610.,
            iscrowd=0,
            segmentation=[[1, 2, 31, 2, 31, 22.]]) for i in range(1, 31)
    ])
RLE = dict(size=[40, 60], counts=[2, 10, 2388])
WRONG: dict[str, list[Any]] = dict(
    id=[1, 0, '7', 2.0, True, 2**60, None],
    image_id=[9, 1.0, True, '1', None],
    category_id=[9, 2.0, True],
    bbox=[[1, 2, 3], [1, 2, 3, '4'], [1, 2, float('nan'), 4], [1, 2, 1e300, 4], None, [1, 2, 0, 0],
          [90, 90, 9, 9], [1, 2, True, 4]],
    area=[None, -1, 1e300, float('inf'), True],
    iscrowd=[2, 0.0, True, None],
    segmentation=[[], None, 3, [[1, 2]], [[1, 2, 3, 4, 5, '6']], [[1, 2, 3, 4, 5, 1e30]],
                  [[1, 2, 3, 4, 5, float('nan')]], [3], RLE, {**RLE, 'size': [60, 40]},
                  {**RLE, 'counts': [2, 10]}, {**RLE, 'counts': 'x~'}, {}],
)  # yapf: disable
CHANGES = [(key, value) for key, values in WRONG.items() for value in values]


@pytest.mark.parametrize('usage', [Usage(), Usage(evaluated=True), Usage(masks=False)])
@pytest.mark.parametrize(('key', 'value'), [*CHANGES, ('', None)], ids=str)
@pytest.mark.parametrize('index', [0, 17])
def test_fast_checks_skip_no_rule(index: int, key: str, value: Any, usage: Usage) -> None:
    """If the fast checks pass, the rules find nothing with an effect."""
    content = copy.deepcopy(COCO)
    if key:
        content['annotations'][index][key] = value
    assert_no_skipped_rule(content, usage)
    if key:
        del content['annotations'][index][key]
        assert_no_skipped_rule(content, usage)
    else:
        assert are_annotations_valid(content, usage)


@pytest.mark.parametrize('change', [
    lambda content: content['images'][0].pop('id'),
    lambda content: content['images'][0].update(id=1.0),
    lambda content: content['images'][0].update(width='60'),
    lambda content: content['images'].append(dict(content['images'][0])),
    lambda content: content['categories'][0].update(name=''),
    lambda content: content['categories'][1].update(id=1),
    lambda content: content['categories'].append(3),
    lambda content: content['annotations'].append(3),
])
def test_fast_checks_with_invalid_images_or_categories(change: Callable) -> None:
    content = copy.deepcopy(COCO)
    change(content)
    assert_no_skipped_rule(content, Usage())


def assert_no_skipped_rule(content: dict[str, list], usage: Usage) -> None:
    """Compare the findings of all rules with those that remain after the fast checks."""
    if not are_annotations_valid(content, usage):
        return
    found = []
    for asked in (content, dict(content, annotations=[])):
        report = Report()
        check_instances(Path('a.json'), asked, report, usage=usage)
        found.append([each for each in report.findings if each.effect != 'none'])
    assert found[0] == found[1]
