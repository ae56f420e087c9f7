"""Locality on recorded streams: the paper's counters and tables, period by period, beside ours."""
