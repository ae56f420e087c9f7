"""What ``query.add_listener(…)`` tells: one class per kind of event.

>>> import weir, weir.testing
>>> rows = []
>>> def listen(event):
...     match event:
...         case BatchCommitted(progress=progress):
...             rows.append(progress.rows)
>>> with weir.testing.start(weir.source("place string").count("place"), servers=2) as query:
...     query.add_listener(listen)
...     query.feed([{"place": "FR"}, {"place": "US"}])
>>> rows
[2]
"""

from weir.engine.batch.events import (
    BatchCommitted,
    BatchDelivered,
    Event,
    Failed,
    RanAgain,
    Reconfigured,
    Scaled,
    Terminated,
)

__all__ = [
    "BatchCommitted",
    "BatchDelivered",
    "Event",
    "Failed",
    "RanAgain",
    "Reconfigured",
    "Scaled",
    "Terminated",
]
