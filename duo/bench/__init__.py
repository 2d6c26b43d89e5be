"""The benchmark framework: contestants, rounds, statistics, tables and plots."""
