"""Members with heartbeats: ``membership`` has the members, and what happened to them."""
