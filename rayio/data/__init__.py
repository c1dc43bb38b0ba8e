"""Datasets: pure layouts, partitions, shuffles and samplers; formats and generation write and read files."""
