"""The operators that torch.compile takes, and the bounds that results of kernels are held to."""
from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers.rounding import check_all_rounding, check_rounding
from torch import Tensor

from colonnade.backbones.kernels.custom_ops import depthwise, outer_products, products


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize('batch', [0, 1, 2])
@pytest.mark.parametrize('operator, shapes, more', [
    (products, [(5, 3), (4, 3), (4, )], ()),
    (products, [(5, 3), (4, 3)], (None, )),
    (outer_products, [(5, 3), (5, 4)], ()),
    (outer_products, [(2500, 2), (2500, 3)], ()),
    (depthwise, [(12, 4), (4, 1, 3, 3), (4, )], (3, )),
])
def test_operators_have_gradients(operator: Callable, shapes: list[tuple[int, ...]], more: tuple,
                                  batch: int) -> None:
    """Of first order; of second order, too, where XCA's plain form has them."""
    shared = 1 if operator is not outer_products else 2  # what comes with a batch
    given = [double(batch, *shape) for shape in shapes[:shared]]
    given += [double(*shape) for shape in shapes[shared:]]
    torch.autograd.gradcheck(
        lambda *tensors: operator(*tensors, *more), given, fast_mode=True, eps=1e-5)
    utilities = ('test_schema', 'test_autograd_registration', 'test_faketensor')
    torch.library.opcheck(operator, (*given, *more), test_utils=utilities)


@pytest.mark.parametrize('batch', [0, 1, 2])
def test_products_with_weights_per_image(batch: int) -> None:
    given = double(batch, 5, 3), double(batch, 4, 3), double(batch, 4)
    expected = torch.baddbmm(given[2].unsqueeze(1), given[0], given[1].mT)
    torch.testing.assert_close(products(*given), expected)
    torch.autograd.gradcheck(products, given, fast_mode=True)


def test_bounds_tell_rounding_from_errors() -> None:
    """Sums in another order pass; a factor that is wrong by a thousandth does not."""
    a, b = torch.randn(300, 2000), torch.randn(2000, 300)
    plain, exact = a @ b, a.double() @ b.double()
    found = sum(a[:, i:i + 100] @ b[i:i + 100] for i in range(0, 2000, 100))
    check_rounding(found, plain, exact)
    check_all_rounding([found, 1e-6 * found], [plain, 1e-6 * plain], [exact, 1e-6 * exact])
    for floor in (16., 1000.):
        with pytest.raises(AssertionError, match='is off by 0.001'):
            check_rounding(found * 1.001, plain, exact, floor=floor)
    with pytest.raises(AssertionError, match='1 is off by'):
        check_all_rounding([found, 1e-2 * found * 1.001], [plain, 1e-2 * plain],
                           [exact, 1e-2 * exact])
