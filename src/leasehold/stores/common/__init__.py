"""What several stores share. ``entries`` has all operations for a store that can compare and swap a record."""
