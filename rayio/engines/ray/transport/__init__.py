"""How calls and batches travel between actors."""
