"""Real and modelled storage with every request counted. :func:`open` opens real storage by address."""

from rayio.storage.stores.opening import Settings, Store, open

__all__ = ["Settings", "Store", "open"]
