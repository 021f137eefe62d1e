"""A stand-in for the NVIDIA driver's library: GPUs without hardware, with the faults that a file names.

`modes` is what the file says: `8` is eight healthy GPUs, `8 3=lost 5=hang` two of them out of order. See `stub_nvml.c`.
"""

import os
import subprocess
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_name("stub_nvml.c")
VARIABLE: Final = "STUB_NVML_MODES"
NAME: Final = "libnvidia-ml.so.1"


def build_stub_nvml(directory: Path) -> Path:
    """Build the library in a directory, by the compiler of the system, and return it."""
    library = directory / NAME
    command = ["cc", "-O1", "-fPIC", "-shared", f"-Wl,-soname,{NAME}", "-o", str(library), str(SOURCE)]
    subprocess.run(command, check=True)  # what is compiled is ours
    return library


def write_modes(path: Path, modes: str) -> None:
    """Write the modes for a running library, which sees the old ones or the new ones."""
    draft = path.with_suffix(".draft")
    draft.write_text(modes)
    os.replace(draft, path)  # noqa: PTH105
