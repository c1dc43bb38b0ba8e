"""Runs on a remote Ray cluster: packed, submitted as jobs and followed; checks of a cluster."""
