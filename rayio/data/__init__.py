"""What is read, and by whom: layouts, partitions, shuffles and samplers are pure; formats and generation make bytes."""
