"""Measuring: clocks and statistics for the scripts in `benchmarks/`."""
