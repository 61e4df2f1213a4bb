"""Work that is done once per version: ``outcomes`` is how, ``note`` what is recorded of a name, ``archive`` where old
versions go, and ``slots`` which version it is with ``per``."""
