"""Reading a checkpoint without running it: its documents, and the state of operators."""
