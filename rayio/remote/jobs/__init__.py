"""Runs on a Ray cluster that is somewhere else: packed, submitted as jobs, followed; and what a cluster is like."""
