"""The virtual engine: a simulation without waits or reads."""
