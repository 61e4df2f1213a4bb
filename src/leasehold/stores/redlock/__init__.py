"""A quorum of independent Redis nodes."""
