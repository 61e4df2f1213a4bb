"""Many readers or one writer. What is shared is a name's capacity: see ``rw_spec`` of the registry."""
