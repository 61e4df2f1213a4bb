from .stores import redlock_nodes

__all__ = ["redlock_nodes"]
