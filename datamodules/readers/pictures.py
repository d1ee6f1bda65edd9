"""Reader of pictures and their masks: PNG, JPEG and BMP.

Shapes: S x S pixels.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageOps

from datamodules.errors import DataMismatch, FormatError

FORMATS = ("PNG", "JPEG", "BMP")
EIGHT_BITS = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")  # Pillow's modes that are read
THRESHOLD = 127  # values above it are the object's
CLEAR = (20, 235)  # a value up to the first, or from the second on, is clearly black or white
BLURRED = 0.05  # the largest share of values that are neither, as JPEG and soft edges leave them
OTHER_SHAPE = 0.02  # the largest relative difference of the aspect ratios of a picture and its mask


def read_picture(file: BinaryIO, size: int, *, where: str | Path) -> np.ndarray:
    """A picture (3, S, S) uint8; each pixel is the mean over the area it covers.

    The whole picture is kept, so sides of different lengths become equal.

    Raises:
        FormatError: the file is no picture, is damaged or too large.
    """
    with opened(file, where) as colours:
        return _resized(colours, size)


def _resized(colours: Image.Image, size: int) -> np.ndarray:
    resized = colours.convert("RGB").resize((size, size), Image.Resampling.BOX)
    return np.asarray(resized).transpose(2, 0, 1)


def read_pair(
    picture: BinaryIO, mask: BinaryIO, size: int, *, where: tuple[str | Path, str | Path]
) -> tuple[np.ndarray, np.ndarray]:
    """A picture (3, S, S) uint8 and its mask (S, S) uint8 in {0, 1}.

    The picture is that of `read_picture`; each pixel of the mask is the nearest.

    Raises:
        FormatError: a file is no picture, is damaged or too large, or the mask is not two-valued.
        DataMismatch: picture and mask have different aspect ratios.
    """
    with opened(picture, where[0]) as colours, opened(mask, where[1]) as object_:
        check_shapes(colours.size, object_.size, where)
        grey = np.asarray(opaque(object_, where[1]).convert("L"))
        values = Image.fromarray(two_valued(grey, where[1], lossless=object_.format != "JPEG"))
        nearest = values.resize((size, size), Image.Resampling.NEAREST)
        return _resized(colours, size), np.asarray(nearest)


def check_shapes(
    picture: tuple[int, int], mask: tuple[int, int], where: tuple[str | Path, str | Path]
) -> None:
    """Refuse a picture and a mask that cannot be of the same scene: widths and heights, in pixels."""
    (width, height), (wide, high) = picture, mask
    if abs(width * high - wide * height) > OTHER_SHAPE * max(width * high, wide * height):
        raise DataMismatch(
            f"{where[0]} has {width} x {height} pixels, its mask {where[1]} has {wide} x {high}: they need "
            "the same aspect ratio. Crop one of the two, or give the right mask."
        )


def opaque(mask: Image.Image, where: str | Path) -> Image.Image:
    """The mask as it is, if every pixel is opaque.

    Raises:
        FormatError: it has transparent pixels, so its colours alone do not say what is shown.
    """
    if mask.has_transparency_data and mask.convert("RGBA").getchannel("A").getextrema() != (255, 255):
        raise FormatError(
            f"{where}: this mask has transparent pixels. Save it without transparency, the object white and "
            "all else black."
        )
    return mask


def two_valued(mask: np.ndarray, where: str | Path, *, lossless: bool = False) -> np.ndarray:
    """0 and 1 for a mask of two values, whichever they are, the brighter being the object's.

    A mask that JPEG or soft edges blurred a little is cut between 127 and 128. One that is the same
    everywhere is all background if it is 0, all object if it is 1 or 255. `lossless`: JPEG did not write it,
    so three values are numbers of classes.

    Raises:
        FormatError: more values than these.
    """
    values = np.unique(mask)
    if len(values) == 2:
        return (mask == values[1]).astype(np.uint8)
    if len(values) == 1 and values[0] in (0, 1, 255):
        return (mask > 0).astype(np.uint8)
    low, high = (values[0], values[-1]) if lossless else CLEAR
    between = float(((mask > low) & (mask < high)).mean())
    if between > BLURRED or values[-1] < CLEAR[1] or (lossless and len(values) == 3):
        raise FormatError(
            f"{where}: a mask has two values, background and object; this one has {len(values)}, from "
            f"{values[0]} to {values[-1]}, and {between:.0%} of its pixels lie between. "
            "Paint the object white and all else black."
        )
    return (mask > THRESHOLD).astype(np.uint8)


@contextmanager
def opened(file: BinaryIO, where: str | Path) -> Iterator[Image.Image]:
    """The picture in a file, decoded and turned as its camera says; closed in the end.

    Raises:
        FormatError: none of FORMATS, damaged, of more than 8 bits a channel, or so large that decoding it
            could fill the memory (Pillow's limit, 89 million pixels).
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            picture: Image.Image = Image.open(file, formats=FORMATS)
            deep = any(";16" in str(tile[3]) for tile in getattr(picture, "tile", ()))  # before it is loaded
            if picture.mode in EIGHT_BITS:
                ImageOps.exif_transpose(picture, in_place=True)
            picture.load()
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise FormatError(
            f"{where} has more than {Image.MAX_IMAGE_PIXELS or 0:,} pixels. Make it smaller."
        ) from None
    except Image.UnidentifiedImageError:
        raise FormatError(
            f"{where}: this is no picture in PNG, JPEG or BMP. Convert it, or replace it."
        ) from None
    except MemoryError:
        raise
    except Exception as error:  # a damaged file can raise anything
        raise FormatError(f"{where} is damaged or incomplete ({error}). Get the file again.") from error
    with picture:
        if picture.mode not in EIGHT_BITS or deep:
            raise FormatError(f"{where} has the mode {picture.mode}: save it with 8 bits a channel.")
        yield picture
