"""What runs on servers: operators on their rows, routers, saved state, and what tasks report."""
