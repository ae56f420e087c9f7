"""The driver: a batch from its plan to its delivery, the checkpoint, and how a query begins and ends."""
