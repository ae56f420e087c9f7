"""`weir run` as a file, where a Python file is asked for: spark-submit main.py app.py:app --config weir.toml."""

import sys

from weir.cli.main import main

sys.exit(main(["run", *sys.argv[1:]]))
