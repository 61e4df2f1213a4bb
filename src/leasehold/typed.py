"""What leasehold uses of ``typing``, at a fraction of its price.

Type checkers see ``typing`` itself. At run time nobody looks at annotations here, so most names only have to exist. A
NamedTuple of ``typing`` takes 0.2 ms to define, because it compiles a constructor and every annotation; there are
thirty. Together that would be 10 of the 55 ms that ``leasehold run`` takes to start.
"""

from __future__ import annotations

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any as Any
    from typing import NamedTuple as NamedTuple
    from typing import Protocol as Protocol
    from typing import TypeAlias as TypeAlias
    from typing import TypeVar as TypeVar
else:
    try:
        from _collections import _tuplegetter as _field  # what collections.namedtuple uses
    except ImportError:
        from operator import itemgetter

        def _field(place, doc):
            return property(itemgetter(place), doc=doc)

    Any = Protocol = TypeAlias = object

    def TypeVar(name, **bound):
        return name

    _new = tuple.__new__

    class NamedTuple(tuple):
        """As in ``typing``, but for its instances' ``__dict__``; making one takes 0.08 µs more."""

        _fields = __match_args__ = _defaults = ()
        _count = 0

        def __init_subclass__(cls):
            fields = tuple(cls.__annotations__)
            if fields:
                own = cls.__dict__
                cls._fields = cls.__match_args__ = fields
                cls._defaults = tuple([own[name] for name in fields if name in own])
                cls._count = len(fields)
                for place, name in enumerate(fields):
                    setattr(cls, name, _field(place, f"Field {place}"))

        def __new__(cls, *args, **named):
            if named or len(args) != cls._count:
                args = _complete(cls, args, named)
            return _new(cls, args)

        @classmethod
        def _make(cls, values):
            return cls(*values)

        def _asdict(self):
            return dict(zip(self._fields, self, strict=True))

        def _replace(self, **changes):
            return type(self)(**{**self._asdict(), **changes})

        def __getnewargs__(self):
            return tuple(self)

        def __repr__(self):
            values = ", ".join([f"{name}={value!r}" for name, value in self._asdict().items()])
            return f"{type(self).__name__}({values})"

    def _complete(cls, args, named):
        """All values in order: those given by place, by name, and the defaults of the rest."""
        missing = len(args) - cls._count
        if not named and -len(cls._defaults) <= missing < 0:
            return args + cls._defaults[missing:]
        values = dict(zip(cls._fields[-len(cls._defaults) :], cls._defaults, strict=False)) | named
        rest = cls._fields[len(args) :]
        if missing > 0 or not named.keys() <= set(rest) or not set(rest) <= values.keys():
            raise TypeError(f"{cls.__name__} takes {', '.join(cls._fields)}; got {args} and {named}")
        return (*args, *[values[name] for name in rest])
