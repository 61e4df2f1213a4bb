"""``python -m leasehold`` is the command ``leasehold``."""

from .cli import main

main()
