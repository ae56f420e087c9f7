"""Watch a query: a page that follows it, metrics for Prometheus, and steering for those who may.

Everything is read from the checkpoint: of a query that runs, has stopped, or runs on another machine. ``weir watch``
serves the page from anywhere the checkpoint can be reached; ``app.start(…, watch=True)`` from the driver.
"""
