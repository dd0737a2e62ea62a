"""Training: launch, runner, hooks, optimizers, processes, the work dir, estimates of resources.

Importing it takes no torch. ``colonnade.engine.components`` registers what configs name.
"""
