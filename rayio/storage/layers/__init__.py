"""Layers: what stands between a reader and the bytes."""
