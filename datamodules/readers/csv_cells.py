"""CSV of numbers below a line of names, as the lines of an ARFF file's rows."""

import csv
import io

from datamodules.errors import ArffError, quoted


def read_cells(text: str, where: str) -> tuple[list[str], list[str]]:
    """The lines of the rows, at their place in the file, and the names of the columns.

    Cells are stripped and joined by commas; one that is empty becomes ?, which is missing.

    Raises:
        ArffError: no names, or one twice; a cell with a comma or a sign that no number has; a quote that is
            not closed. The message names file and line.
    """
    csv.field_size_limit(max(len(text), 1 << 17))
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    lines = [""] * (text.count("\n") + text.count("\r") + 1)
    try:
        names = [name.strip() for name in next(rows, [])]
        _check_names(names)
        for row in rows:
            cells = [cell.strip() or "?" for cell in row]
            line = ",".join(cells)
            if "%" in line or "{" in line or line.count(",") >= len(cells) > 0:  # signs of ARFF
                bad = next(cell for cell in cells if set(cell) & set(",%{"))
                raise ValueError(f"{quoted(bad)} is no number; decimals take a point")
            lines[rows.line_num - 1] = line
    except (csv.Error, ValueError) as error:
        at = max(rows.line_num, 1)
        raise ArffError(f"{where}, line {at}: {error}. Correct this line.") from None
    return lines, names


def _check_names(names: list[str]) -> None:
    if len(names) < 2:
        raise ValueError("there is one column: separate names and values by commas")
    if all(map(_is_number, names)):
        raise ValueError(f"{quoted(names[0])} is no name: the first line has to name the columns")
    seen: set[str] = set()
    for at, name in enumerate(names, 1):
        if not name:
            raise ValueError(f"column {at} has no name: name it, or write the file without it (an index?)")
        if name in seen:
            raise ValueError(f"the name {quoted(name)} comes twice")
        seen.add(name)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
