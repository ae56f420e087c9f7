"""The command line. Everything that draws on a terminal is here."""
