"""The application as plain data: checked and placed once, then only read."""
