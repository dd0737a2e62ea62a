"""Configs for custom datasets: implementation of ``colonnade create_config``."""
