"""Loaders, which make a rank's batches: rayio's reader actors, or another library's loader over the same files."""
