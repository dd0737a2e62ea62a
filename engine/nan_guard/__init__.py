"""Numbers that go wrong in training: what is not finite, and a loss that explodes."""
from .nan_guard_hook import FiniteSteps, skip_bad_steps

__all__ = ['FiniteSteps', 'skip_bad_steps']
