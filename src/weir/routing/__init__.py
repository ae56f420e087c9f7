"""Groupings: who receives a row. One file per grouping, named as in the papers."""
