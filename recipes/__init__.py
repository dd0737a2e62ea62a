"""Configs from your data, and backbones swapped into somebody else's config."""
