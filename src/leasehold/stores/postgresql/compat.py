"""What leasehold needs of psycopg_pool that it does not offer publicly. Nothing else here uses its private names.

The connection that listens is made beside the user's pool, as the pool makes its own. A pool shows how it connects
(``conninfo``, ``kwargs``, ``connection_class``), but not the function that makes a new connection ready.
``tests/stores/test_sql_compat.py`` fails if its name changes. ``pyproject.toml`` bounds the version that is tested;
the version in use is the user's choice.
"""

from __future__ import annotations

from typing import Any


def configure_of(pool: Any) -> Any:
    """The ``configure`` that the pool was given: a function of a new connection (async in an async pool), or None."""
    return pool._configure
