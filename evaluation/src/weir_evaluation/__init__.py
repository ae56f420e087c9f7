"""What proves Weir: benchmarks, peers, a simulator, a lab of several hosts, and the papers' figures.

No user of the library needs it. Installed beside ``weir`` it adds the commands ``weir bench`` and ``weir lab``.
"""
