"""Measurements that anyone can repeat: ``weir bench NAME``.

Each module offers three functions: ``arguments(parser)`` declares its options, ``run(args, console)``
measures and returns something that JSON can hold, ``show(result, console)`` prints it as a table. Progress
goes to the console (standard error), results to standard output. ``HELP`` is the line in the overview.
"""

HELP = "measurements that anyone can repeat"
SUBCOMMANDS = {
    name: f"weir_evaluation.bench.{name}"
    for name in (
        "engine",
        "process",
        "cold",
        "chaos",
        "semantics",
        "fuzz",
        "invariants",
        "soak",
        "live",
        "peers",
        "nexmark",
        "groupings",
        "locality",
        "partition",
        "reconfigure",
        "auto",
        "elastic",
        "scale",
        "source",
        "kafka",
        "sinks",
        "consistent",
        "squirrel",
        "stela",
        "lab",
        "watch",
        "pages",
    )
}
