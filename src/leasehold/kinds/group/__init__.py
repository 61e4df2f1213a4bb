"""Members with heartbeats: ``membership`` is who is there, and who has come, left or failed."""
