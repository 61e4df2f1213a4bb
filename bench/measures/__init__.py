"""A file per measure. Each has ``run(setting) -> list[Row]``."""
