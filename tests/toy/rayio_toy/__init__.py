"""Kinds for rayio: a format, a shuffle, a storage and a model of one, a checkpoint kind."""
