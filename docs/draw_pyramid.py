"""Draw images/pyramid.svg: a columnar trunk, its taps, and the pyramid.

    python docs/draw_pyramid.py > docs/images/pyramid.svg
"""
from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import quoteattr

TAPS = (4, 6, 8, 12)
LEVELS = (  # stride, side of its square, what makes it
    (4, 112, 'transposed convolutions'), (8, 72, 'transposed convolution'),
    (16, 44, 'none'), (32, 26, 'max-pooling'))  # yapf: disable
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


def trunk() -> Iterator[str]:
    """Twelve equal blocks; those that are tapped have another colour."""
    yield text(LEFT - 12, TOP + 34, 'image', 'end')
    for number in range(1, 13):
        x = LEFT + (number - 1) * STEP
        yield box(x, TOP, BLOCK, 60, 'tap' if number in TAPS else 'block')
        yield text(x + BLOCK / 2, TOP - 8, str(number))
        if number < 12:
            yield line(x + BLOCK, TOP + 30, x + STEP, TOP + 30)


def pyramid() -> Iterator[str]:
    """A square for each level, below the tap that it is made from, with a line between them."""
    for index, (tap, (stride, side, layers)) in enumerate(zip(TAPS, LEVELS, strict=True)):
        start = LEFT + (tap - 1) * STEP + BLOCK / 2
        x = 110 + index * 160
        yield line(start, TOP + 60, x, TOP + 122)
        yield text(x, TOP + 138, layers)
        yield box(x - side / 2, TOP + 150, side, side, 'tap')
        yield text(x, TOP + 282, f'stride {stride}')


def main() -> None:
    """Print the drawing; its grey and colours are readable on light and dark pages."""
    style = ('text{font:13px sans-serif;fill:#888}line{stroke:#888}'
             '.block{fill:#8884;stroke:#888}.tap{fill:#3b82f6aa;stroke:#3b82f6}')
    print('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 335" width="700" '
          f'height="335">\n<style>{style}</style>')
    print('\n'.join([*trunk(), *pyramid()]))
    print('</svg>')


if __name__ == '__main__':
    main()
