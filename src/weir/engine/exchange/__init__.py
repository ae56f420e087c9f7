"""How rows travel from server to server."""
