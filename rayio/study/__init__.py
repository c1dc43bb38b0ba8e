"""One scenario at many points: sweeps, and how much is enough."""
