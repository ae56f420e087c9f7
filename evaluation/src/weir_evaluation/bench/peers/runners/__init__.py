"""The programs that are measured, one per system; each runs in that system's own environment.

None of them imports weir (but Weir's own, and ``jvm``, which starts programs in Java): all they share is ``told``,
which lies beside them and which they import by its bare name, as scripts do. What they need is imported inside
functions, since this package is also read where the peers are not installed.
"""
