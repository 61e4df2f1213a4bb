"""The names of decorated calls: ``"customer:{customer}"`` is a template over the arguments of each call.

``inspect`` and ``string`` are loaded for such a name only: they take longer to load than all of leasehold.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from . import checks
from .options import Spec

if TYPE_CHECKING:
    from inspect import Signature

Args: TypeAlias = tuple[Any, ...]
Kwargs: TypeAlias = dict[str, Any]
CallNames: TypeAlias = Callable[[Args, Kwargs], list[str]]

_FIELD = re.compile(r"([^\W\d]\w*)((?:\.[^\W\d]\w*|\[[^][]+\])*)")
_STEP = re.compile(r"\.(\w+)|\[(.+?)\]")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+>")
"""In the text of an object that has none of its own: it differs in each process."""


def call_names(function: Callable[..., object], specs: Sequence[Spec]) -> CallNames | None:
    """What makes the names of each call of a decorated ``function``. None if all names are literal.

    Raises ValueError if a template does not fit the function."""
    if not any(spec.name_of is not None or "{" in spec.name or "}" in spec.name for spec in specs):
        return None
    makers = [_from_function(spec.name_of) if spec.name_of else Template(spec.name, function) for spec in specs]
    return lambda args, kwargs: [make(args, kwargs) for make in makers]


def _from_function(name_of: Callable[..., str]) -> Callable[[Args, Kwargs], str]:
    what = f"the name that {checks.called(name_of)} returned"
    return lambda args, kwargs: checks.text(name_of(*args, **kwargs), what, checks.MAX_NAME)


class _Field(NamedTuple):
    """A field of a template: ``{user.id:>8}``."""

    text: str
    argument: str
    steps: Sequence[tuple[str, str]]
    """Each an attribute or an item to read, as (attribute, "") or ("", item)."""
    conversion: str | None
    format_spec: str


class Template:
    """A name with fields, for the calls of one function."""

    def __init__(self, name: str, function: Callable[..., object]) -> None:
        import string

        self._name = name
        self._function = checks.called(function)
        self._format = string.Formatter()
        self._parts: list[str | _Field] = []
        try:
            parsed = list(self._format.parse(name))
        except ValueError as error:
            raise ValueError(f"the name {name!r}: {error}; a literal brace is written {{{{ or }}}}") from None
        for literal, field, format_spec, conversion in parsed:
            self._parts.append(literal)
            if field is not None:
                self._parts.append(self._field(field, format_spec or "", conversion))
        self._signature = self._signature_of(function)

    def __call__(self, args: Args, kwargs: Kwargs) -> str:
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._function}(): {error}") from None
        bound.apply_defaults()
        parts = [part if isinstance(part, str) else self._text(part, bound.arguments) for part in self._parts]
        return checks.text("".join(parts), f"the name that {self._name!r} gives", checks.MAX_NAME)

    def _field(self, field: str, format_spec: str, conversion: str | None) -> _Field:
        found = _FIELD.fullmatch(field)
        if found is None:
            raise ValueError(
                f"the name {self._name!r}: {{{field}}} is not the name of an argument, such as {{customer}} or "
                "{user.id}; a literal brace is written {{ or }}"
            )
        steps = _STEP.findall(found[2])
        if any(attribute.startswith("_") for attribute, _ in steps):
            raise ValueError(f"the name {self._name!r}: {{{field}}} reads a private attribute")
        if conversion not in (None, "r", "s", "a"):
            raise ValueError(f"the name {self._name!r}: unknown conversion !{conversion} of {{{field}}}")
        if "{" in format_spec:
            raise ValueError(f"the name {self._name!r}: the format of {{{field}}} contains another field")
        return _Field(field, found[1], steps, conversion, format_spec)

    def _signature_of(self, function: Callable[..., object]) -> Signature:
        import inspect

        signature = inspect.signature(function)
        for part in self._parts:
            if isinstance(part, _Field) and part.argument not in signature.parameters:
                known = ", ".join(signature.parameters) or "none"
                what = f"{self._function} has no argument {part.argument!r}"
                raise ValueError(f"the name {self._name!r}: {what}; its arguments: {known}")
        return signature

    def _text(self, field: _Field, arguments: Kwargs) -> str:
        what = f"{{{field.text}}} in the name {self._name!r}"
        value = arguments[field.argument]
        try:
            for attribute, item in field.steps:
                value = getattr(value, attribute) if attribute else value[int(item) if item.isdecimal() else item]
            if _is_routine(value):
                raise TypeError(
                    f"{checks.called(value)} is not called by a template; call it in a function for the name"
                )
            converted = value if field.conversion is None else self._format.convert_field(value, field.conversion)
            text = format(converted, field.format_spec)
            if not isinstance(value, str) and _ADDRESS.search(text):
                raise TypeError(f"a {type(value).__name__} has no text of its own; use one of its attributes")
        except Exception as error:
            raise ValueError(f"{what} cannot be read in this call of {self._function}: {error}") from error
        return checks.text(text, what, checks.MAX_NAME, shortest=0)


def _is_routine(value: object) -> bool:
    import inspect

    return inspect.isroutine(value)
