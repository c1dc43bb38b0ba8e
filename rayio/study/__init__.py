"""One scenario at many points: sweeps and sizing."""
