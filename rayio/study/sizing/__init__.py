"""Sizing: the most accelerators that a storage keeps busy, the cheapest settings that reach a goal."""
