"""DLIO (argonne-lcf/dlio_benchmark, and MLPerf Storage based on it): its metrics, and its results as runs."""
