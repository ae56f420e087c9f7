"""Servers that stay for many batches and send rows straight to each other."""
