"""Predictions: the costs and times of runs, as scenarios that the virtual clock replays with changes."""
