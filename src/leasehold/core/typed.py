"""What leasehold uses of ``typing``, at a fraction of its price.

Type checkers see ``typing`` itself. At run time nobody looks at annotations here, so most names only have to exist. A
NamedTuple of ``typing`` takes 0.2 ms to define, because it compiles a constructor and every annotation; there are
thirty, of which a run uses a few. Here the constructor is compiled when the first instance is made.
"""

from __future__ import annotations

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any as Any
    from typing import NamedTuple as NamedTuple
    from typing import Protocol as Protocol
    from typing import Self as Self
    from typing import TypeAlias as TypeAlias
    from typing import TypeVar as TypeVar
else:
    try:
        from _collections import _tuplegetter as _field  # what collections.namedtuple uses
    except ImportError:
        from operator import itemgetter

        def _field(place, doc):
            return property(itemgetter(place), doc=doc)

    Any = Protocol = Self = TypeAlias = object

    def TypeVar(name, **bound):
        return name

    class NamedTuple(tuple):
        """As in ``typing``, but for its instances' ``__dict__``."""

        _fields = __match_args__ = _defaults = ()

        def __init_subclass__(cls):
            fields = tuple(cls.__annotations__)
            if fields:
                own = cls.__dict__
                cls._fields = cls.__match_args__ = fields
                cls._defaults = tuple([own[name] for name in fields if name in own])
                for place, name in enumerate(fields):
                    setattr(cls, name, _field(place, f"Field {place}"))

        def __new__(cls, *args, **named):
            names = "".join([f"{name}, " for name in cls._fields])
            new = eval(f"lambda _cls, {names}: _new(_cls, ({names}))", {"_new": tuple.__new__})
            new.__defaults__ = cls._defaults
            new.__name__ = cls.__name__  # for the message when an argument is missing
            cls.__new__ = staticmethod(new)
            return new(cls, *args, **named)

        _make = classmethod(tuple.__new__)  # without a frame of Python's, and without defaults

        def _asdict(self):
            return dict(zip(self._fields, self, strict=True))

        def _replace(self, **changes):
            return type(self)(**{**self._asdict(), **changes})

        def __getnewargs__(self):
            return tuple(self)

        def __repr__(self):
            values = ", ".join([f"{name}={value!r}" for name, value in self._asdict().items()])
            return f"{type(self).__name__}({values})"
