"""Engines of checkpoints that write and read with PyTorch."""
