"""Training: launch, runner, hooks, optimizers, processes, the work dir and resource estimates.

Importing it does not import torch. ``colonnade.engine.components`` registers the types in configs.
"""
