"""Batches in this process, without Spark: for tests, and for trying things out."""
