"""Work that is done once per version: ``outcomes`` is what is recorded, and how."""
