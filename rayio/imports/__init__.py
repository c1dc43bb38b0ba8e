"""What is DLIO's (argonne-lcf/dlio_benchmark, and MLPerf Storage on it): metrics, and results as runs."""
