"""A parser with a cache: a part of a config is parsed once.

By itself jsonargparse parses a part again for each object around it. The cells of a table share most parts.
"""

from contextvars import copy_context
from typing import Any, ClassVar

from jsonargparse import Namespace
from pytorch_lightning.cli import LightningArgumentParser

ORIGIN = ("previous_config", "config_load_stack")  # where a value was read; not part of the value


class SharingParser(LightningArgumentParser):
    """Caches what it has parsed and dumped, keyed by all that the result depends on.

    The key is the parser of a class, the arguments, and the context that jsonargparse sets while it parses.
    Errors are not cached.
    """

    kept: ClassVar[dict[Any, Any]] = {}  # shared by all parsers of the process

    def parse_object(self, *args: Any, **kwargs: Any) -> Namespace:
        """The config of an object; a copy, because callers change it."""
        key = self._key("parse", args, kwargs)
        if key not in self.kept:
            self.kept[key] = super().parse_object(*args, **kwargs)
        return self.kept[key].clone()

    def dump(self, *args: Any, **kwargs: Any) -> str:
        """The text of a config."""
        key = self._key("dump", args, kwargs)
        if key not in self.kept:
            self.kept[key] = super().dump(*args, **kwargs)
        return self.kept[key]

    def _key(self, *of: Any) -> tuple[Any, ...]:
        context = {name: value for name, value in copy_context().items() if name.name not in ORIGIN}
        return self, repr(of), frozenset((name, _hashable(value)) for name, value in context.items())


def _hashable(value: object) -> object:
    if isinstance(value, LightningArgumentParser):  # jsonargparse makes the same parsers of classes for both
        return type(value), value.parser_mode
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value
