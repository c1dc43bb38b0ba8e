"""The actors of a run, and how they are started and watched."""
