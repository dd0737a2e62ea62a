"""Training, evaluation, prediction and the rest of what the commands do.

Importing it takes no torch. ``colonnade.engine.components`` registers what configs name.
"""
from .config_scopes import use_installed_packages

use_installed_packages()  # from here on, _base_ = 'mmseg::…' works
