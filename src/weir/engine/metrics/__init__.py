"""What a batch did: progress, traffic, latency, load."""
