"""What is built on leases: one folder a kind, with the half that threads and tasks share in a file of its own."""
