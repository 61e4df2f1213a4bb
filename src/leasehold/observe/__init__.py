"""What metrics and traces have in common: a ``Locks`` that is observed."""
