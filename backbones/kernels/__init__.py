"""Layers of tokens computed fast and with little memory, for all backbones."""
