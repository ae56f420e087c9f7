"""The command line: parses arguments and draws; the only package that imports ``rich``, and that no other imports."""
