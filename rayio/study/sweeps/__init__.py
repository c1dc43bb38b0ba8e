"""Sweeps: one scenario at many points, resumable, with tables and a page."""
