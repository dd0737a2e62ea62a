"""Draw a figure of the pages: a backbone and the pyramid, or what the backbones mix.

    python docs/draw_figures.py pyramid > docs/images/pyramid.svg
    python docs/draw_figures.py mixing > docs/images/mixing.svg
"""
from __future__ import annotations

import argparse
from collections.abc import Iterator
from xml.sax.saxutils import quoteattr

TAPS = (4, 6, 8, 12)
LEVELS = (  # stride, side of its square, what makes it
    (4, 112, '2 transposed conv.'), (8, 72, 'transposed conv.'),
    (16, 44, 'unchanged'), (32, 26, 'max-pooling'))  # yapf: disable
MATRICES = (  # backbone, its matrix, rows of the matrix for each image, middle of the drawing's row
    ('XCiT: channels of a head by channels', '48 × 48 for both images (S12)', (48, 48), 30),
    ('CaiT: tokens by tokens', '1024 × 1024, then 4096 × 4096', (1024, 4096), 140),
    ('ResMLP: tokens of its own grid', '196 × 196 for both images (S24)', (196, 196), 250),
)  # yapf: disable
ROWS_PER_UNIT = 25.6  # all matrices are drawn to this scale
LEFT, BLOCK, STEP, TOP = 60, 28, 52, 40


def element(name: str, content: str = '', **attributes: object) -> str:
    pairs = (f'{key.rstrip("_").replace("_", "-")}={quoteattr(str(value))}'
             for key, value in attributes.items())
    return f'<{name} {" ".join(pairs)}>{content}</{name}>'


def text(x: float, y: float, words: str, anchor: str = 'middle') -> str:
    return element('text', words, x=x, y=y, text_anchor=anchor)


def box(x: float, y: float, width: float, height: float, kind: str) -> str:
    return element('rect', class_=kind, x=x, y=y, width=width, height=height, rx=3)


def line(x1: float, y1: float, x2: float, y2: float) -> str:
    return element('line', x1=x1, y1=y1, x2=x2, y2=y2)


def backbone() -> Iterator[str]:
    """Twelve equal blocks; those that are tapped have another colour."""
    yield text(LEFT - 12, TOP + 34, 'image', 'end')
    for number in range(1, 13):
        x = LEFT + (number - 1) * STEP
        yield box(x, TOP, BLOCK, 60, 'tap' if number in TAPS else 'block')
        yield text(x + BLOCK / 2, TOP - 8, str(number))
        if number < 12:
            yield line(x + BLOCK, TOP + 30, x + STEP, TOP + 30)


def pyramid_below_backbone() -> Iterator[str]:
    yield from backbone()
    yield from pyramid()


def pyramid() -> Iterator[str]:
    """Return a square for each level, below the feature map that it is made from."""
    for index, (tap, (stride, side, layers)) in enumerate(zip(TAPS, LEVELS, strict=True)):
        start = LEFT + (tap - 1) * STEP + BLOCK / 2
        x = 110 + index * 160
        yield line(start, TOP + 60, x, TOP + 122)
        yield text(x, TOP + 138, layers)
        yield box(x - side / 2, TOP + 150, side, side, 'tap')
        yield text(x, TOP + 282, f'stride {stride}')


def mixing() -> Iterator[str]:
    """Return the mixing matrix of each backbone, for a small and a large image."""
    for name, matrix, sizes, y in MATRICES:
        yield text(20, y - 8, name, 'start')
        yield text(20, y + 10, matrix, 'start')
        for column, size in enumerate(sizes):
            x, side = 420 + column * 170, size / ROWS_PER_UNIT
            yield box(x - side / 2, y - side / 2, side, side, 'tap')
    for column, words in enumerate(('512 × 512 pixels', '1024 × 1024 pixels')):
        yield text(420 + column * 170, 290, words)


def main() -> None:
    """Print a drawing; its grey and colours are readable on light and dark pages."""
    figures = dict(pyramid=(pyramid_below_backbone, 335), mixing=(mixing, 305))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('figure', choices=figures)
    draw, height = figures[parser.parse_args().figure]
    style = ('text{font:13px sans-serif;fill:#888}line{stroke:#888}'
             '.block{fill:#8884;stroke:#888}.tap{fill:#3b82f6aa;stroke:#3b82f6}')
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 {height}">\n'
          f'<style>{style}</style>')
    print('\n'.join(draw()))
    print('</svg>')


if __name__ == '__main__':
    main()
