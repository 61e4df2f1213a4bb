"""leasehold beside its peers, in one interleaved run: ``python -m bench.run``. See ``run.py``."""
