"""Checks of the values in table files, records and state files.

A check takes a place (such as `rows.ce.label`) and the value found there. It returns the first fault, or
None.
"""

import re
import reprlib
from base64 import b64decode
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from experiments.errors import short

LARGEST = 1e30  # number; its fourth power is still finite
LARGEST_SEED = 2**32 - 1
LONGEST = 10_000  # characters of a text
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")  # would break a terminal or a page
FILE_NAME = re.compile(r"[\w+-][\w.+-]{0,79}")
NAME = re.compile(r"(?![.\s])[^/,\n]{1,80}(?<!\s)")
PLACE = re.compile(r"[^/]+/[^/]+/\d{1,10}")


Found = Any  # any value read from a file


class Fault(NamedTuple):
    """Where a value is invalid, and why."""

    place: str
    says: str

    def __str__(self) -> str:
        """Both as the end of a message."""
        return f"{short(self.place) or 'it'} {self.says}"


Check = Callable[[str, Any], Fault | None]


def value(says: str, fits: Callable[[Any], object]) -> Check:
    """A check of a single value; `says` completes "it has to be"."""

    def check(place: str, found: Found) -> Fault | None:
        return None if fits(found) else Fault(place, f"is {shown(found)}; it has to be {says}")

    return check


def optional(inner: Check) -> Check:
    """Nothing, or a value that `inner` accepts."""
    return lambda place, found: None if found is None else inner(place, found)


def listed(inner: Check, *, least: int = 0) -> Check:
    """A list with at least `least` items."""

    def check(place: str, found: Found) -> Fault | None:
        if not isinstance(found, list) or len(found) < least:
            return Fault(place, f"is {shown(found)}; it has to be a list{' that is not empty' * bool(least)}")
        for i, one in enumerate(found):
            if inner(place, one):
                return inner(f"{place}[{i}]", one)
        return None

    return check


def one_or_list(inner: Check) -> Check:
    """One value, or a list of values."""
    return lambda place, found: (listed(inner) if isinstance(found, list) else inner)(place, found)


def named(inner: Check, name: Check | None = None, *, least: int = 0) -> Check:
    """Pairs of a name and a value."""

    def check(place: str, found: Found) -> Fault | None:
        if not isinstance(found, dict) or len(found) < least:
            needed = "`name: value` pairs" + ", one at least" * bool(least)
            return Fault(place, f"is {shown(found)}; it has to hold {needed}")
        for key, one in found.items():
            fault = (name or word)(f"{place}.{key}", key) or inner(f"{place}.{key}", one)
            if fault:
                return fault
        return None

    return check


def keyed(fields: Mapping[str, Check], *, needed: tuple[str, ...] = ()) -> Check:
    """The known keys; `needed` ones have to be there, others may hold anything."""

    def check(place: str, found: Found) -> Fault | None:
        if not isinstance(found, dict):
            return Fault(place, f"is {shown(found)}; it has to hold `name: value` pairs")
        inside = f"{place}." if place else ""
        faults = [fields[key](f"{inside}{key}", one) for key, one in found.items() if key in fields]
        faults += [Fault(f"{inside}{key}", "is missing") for key in needed if key not in found]
        return next(filter(None, faults), None)

    return check


def shown(found: Found) -> str:
    """A value of any size, shortened for a message."""
    try:
        return _SHORT.repr(found)
    except ValueError:  # an integer of thousands of digits
        return f"a {type(found).__name__} too long to show"


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60


def is_text(found: Found) -> bool:
    """Whether this is text without control characters and not too long."""
    return isinstance(found, str) and len(found) <= LONGEST and not CONTROL.search(found)


def is_number(found: Found) -> bool:
    """Whether this is a finite number of ordinary size; true and false are not numbers."""
    return isinstance(found, int | float) and not isinstance(found, bool) and abs(found) <= LARGEST


def is_count(found: Found) -> bool:
    """Whether this is 0, 1, 2, ..."""
    return type(found) is int and 0 <= found <= LARGEST


def is_seed(found: Found) -> bool:
    """Whether all random generators accept this seed."""
    return type(found) is int and 0 <= found <= LARGEST_SEED


def _plain(found: Found) -> bool:
    """Whether this is a valid config value; the loader has limited its size."""
    if isinstance(found, list):
        return all(map(_plain, found))
    if isinstance(found, dict):
        return all(is_text(key) and _plain(one) for key, one in found.items())
    return found is None or isinstance(found, bool | float) or is_number(found) or is_text(found)


anything = value("anything", lambda found: True)
text = value(f"text of at most {LONGEST:,} ordinary characters", lambda v: is_text(v) or is_number(v))
word = value("text in one line, not empty", lambda v: is_text(v) and v.strip() and "\n" not in v)
name = value(
    "a name of at most 80 characters, without comma and slash",
    lambda v: is_text(v) and NAME.fullmatch(v),
)
file_name = value(
    "a name of letters, digits and _ . + -", lambda v: isinstance(v, str) and FILE_NAME.fullmatch(v)
)
inequality = value(
    "one line such as `static > ce` or `nce >= ce + 3`, of at most 400 characters",
    lambda v: is_text(v) and len(v) <= 400 and not re.search(r"[`#\n]", v),
)
number = value(f"a finite number of at most {LARGEST:g}", is_number)
above_zero = value("a number above 0, from 1e-12 to 1e12", lambda v: is_number(v) and 1e-12 <= v <= 1e12)
not_negative = value("a finite number, 0 or more", lambda v: is_number(v) and v >= 0)
count = value("a whole number, 0 or more", is_count)
positive = value("a whole number, 1 or more", lambda v: is_count(v) and v > 0)
seed = value(f"a whole number from 0 to {LARGEST_SEED}", is_seed)
truth = value("true or false", lambda v: isinstance(v, bool))
plain = value("text, numbers, lists and pairs of them", _plain)
pairs = named(anything)


def masks(place: str, found: Found) -> Fault | None:
    """Masks of pictures: the bits of all, row by row, packed and in base64, and the IoU of each."""
    fields = {"height": positive, "width": positive, "iou": listed(number, least=1), "bits": word}
    if fault := keyed(fields, needed=(*fields,))(place, found):
        return fault
    pixels = len(found["iou"]) * found["height"] * found["width"]
    try:
        whole = len(b64decode(found["bits"], validate=True)) == -(-pixels // 8)
    except ValueError:
        whole = False
    return None if whole else Fault(f"{place}.bits", f"has to be base64 of {pixels:,} packed bits")


def one_of(*names: str) -> Check:
    """One of these words."""
    return value(" or ".join(names), lambda v: isinstance(v, str) and v in names)
