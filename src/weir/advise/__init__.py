"""Would locality-aware routing help with this data? Counting, judging, advising."""
