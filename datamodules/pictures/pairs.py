"""Find the pictures and masks in a user's folders, and read lists of names."""

import mimetypes
from collections.abc import Iterable
from pathlib import Path

from datamodules.errors import DataMismatch, DataNotFound, FormatError, quoted
from datamodules.sources.files import shown, unpack

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp")
Pairs = dict[
    str, tuple[Path, Path]
]  # a picture and its mask, by the name of the picture's file less its suffix


def find_pairs(pictures: Path, masks: Path, mask_suffix: str = "") -> Pairs:
    """Each picture with its mask: a.jpg with a.png, or with a_mask.png where that is the suffix; by name.

    Both may be in one folder, if masks have a suffix; without it, a file is no mask. Files that are no
    pictures are passed over, and hidden ones.

    Raises:
        DataNotFound: a folder is not there, or has no pictures.
        DataMismatch: a picture without a mask, a mask without a picture, or two files of one name.
        FormatError: a file is no regular one, or a picture in another format.
    """
    of_pictures, of_masks = by_name(pictures), by_name(masks)
    if pictures.resolve() == masks.resolve():
        if not mask_suffix:
            raise DataMismatch(
                f"Pictures and masks are both in {shown(pictures)}: give the folder of the masks with "
                "--data.masks, or what their names end in with --data.mask_suffix, such as _mask."
            )
        of_pictures = {name: path for name, path in of_pictures.items() if not name.endswith(mask_suffix)}
    of_masks = {
        name.removesuffix(mask_suffix): path for name, path in of_masks.items() if name.endswith(mask_suffix)
    }
    if bare := [name for name in of_pictures if name not in of_masks]:
        raise DataMismatch(
            f"{shown(of_pictures[bare[0]])} has no mask: {shown(masks)} has no PNG, JPEG or BMP named "
            f"{quoted(bare[0] + mask_suffix)}{others(bare)}. Add masks, or remove pictures."
        )
    if lone := [name for name in of_masks if name not in of_pictures]:
        raise DataMismatch(
            f"{shown(of_masks[lone[0]])} has no picture: {shown(pictures)} has no PNG, JPEG or BMP named "
            f"{quoted(lone[0])}{others(lone)}. Add pictures, or remove masks."
        )
    return {name: (of_pictures[name], of_masks[name]) for name in sorted(of_pictures)}


def by_name(folder: Path) -> dict[str, Path]:
    """The pictures in a folder, by their names without .png, .jpg, .jpeg or .bmp."""
    try:
        paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except NotADirectoryError:
        raise DataNotFound(f"{shown(folder)} is a file. Name the folder of its pictures.") from None
    except OSError as error:
        raise DataNotFound(
            f"The folder {shown(folder)} cannot be read ({error.strerror}). Correct the path."
        ) from None
    found: dict[str, Path] = {}
    for path in paths:
        if path.suffix.lower() not in SUFFIXES:
            if (mimetypes.guess_type(path.name)[0] or "").startswith("image/"):
                raise FormatError(f"{shown(path)}: PNG, JPEG and BMP are read. Convert it, or move it away.")
        elif not path.is_file():
            raise FormatError(
                f"{shown(path)} is no regular file. Move it away, or put a picture in its place."
            )
        elif path.stem in found:
            raise DataMismatch(
                f"{shown(found[path.stem])} and {path.name} have one name. Remove one of them."
            )
        else:
            found[path.stem] = path
    if not found:
        raise DataNotFound(
            f"The folder {shown(folder)} has no pictures in PNG, JPEG or BMP. Correct the path."
        )
    return found


def others(names: list[str]) -> str:
    """How many more names there are than the one that a message has."""
    return f"; {len(names) - 1} more are like this" if len(names) > 1 else ""


def read_list(file: Path, names: Iterable[str]) -> list[str]:
    """The names in a list, one a line, with or without the suffix of the picture's file; # begins a remark.

    Raises:
        DataNotFound: the list cannot be read.
        DataMismatch: a line is none of the pictures, or is there twice; or the list is empty. The message
            names the line.
    """
    known = set(names)
    found: dict[str, int] = {}
    for number, line in enumerate(unpack(file).decode("utf-8-sig", errors="replace").splitlines(), 1):
        name = line.partition("#")[0].strip()
        if not name:
            continue
        path = Path(name)
        name = path.stem if name not in known and path.suffix.lower() in SUFFIXES else name
        if name not in known or len(path.parts) > 1:
            raise DataMismatch(
                f"{shown(file)}, line {number}: there is no picture {quoted(line)}. Correct the line."
            )
        if name in found:
            raise DataMismatch(
                f"{shown(file)}, line {number}: {quoted(line)} is in line {found[name]} too. Drop one."
            )
        found[name] = number
    if not found:
        raise DataMismatch(f"{shown(file)} names no picture. Write one name a line, or leave the list out.")
    return [*found]
