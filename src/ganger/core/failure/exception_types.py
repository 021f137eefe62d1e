"""Python exceptions by their type: those of the system and its libraries, and those of programs."""

import re
from typing import Final

from ganger.core.failure.failure_classes import UNKNOWN_CLASS, USER_ERROR_CLASS, Depth
from ganger.core.failure.log_signatures.signature_table import SignatureSearch
from ganger.core.failure.signatures import MEMORY_TYPES, PEER_LOST_TYPES, SYSTEM_TYPES, UNCLEAR_TYPES, WRAPPER_TYPES

LIBRARIES: Final = re.compile(
    r"^(torch|torch_xla|jax|jaxlib|tensorflow|requests|urllib3|httpx|httpcore|aiohttp|botocore|boto3|s3transfer|google|azure"
    r"|huggingface_hub|datasets|fsspec|s3fs|gcsfs|wandb|mlflow|comet_ml|neptune|ray|horovod|mpi4py|deepspeed|megatron"
    r"|pyarrow|tarfile|zipfile|gzip|zlib|lzma|zstandard|pickle|_pickle|json|PIL|h5py|numpy|safetensors|safetensors_rust"
    r"|socket|ssl|c10|pynvml|cupy|triton|xgboost|grpc|orbax|lightning|pytorch_lightning|subprocess|concurrent|multiprocessing"
    r"|omegaconf|hydra|webdataset|streaming|openai|etcd|kubernetes|paramiko|docker|redis|psycopg2|sqlite3|sqlalchemy)\."
)
"""Modules whose exceptions are searched like those of the system."""
EXCEPTION_CLASSES: Final = {
    "ModuleNotFoundError": "missing_module",
    "ImportError": "missing_module",
    "PermissionError": "permission_denied",
    "UnicodeDecodeError": "data_corrupt",
    "JSONDecodeError": "data_corrupt",
    "ReadError": "data_corrupt",
    "UnidentifiedImageError": "data_corrupt",
    "BadZipFile": "data_corrupt",
    "BadGzipFile": "data_corrupt",
    "ArrowInvalid": "data_corrupt",
    "DataLossError": "data_corrupt",
    "LZMAError": "data_corrupt",
    "UnpicklingError": "checkpoint_corrupt",
    "HFValidationError": USER_ERROR_CLASS,
    "MemoryError": "host_oom_killed",
    "KeyboardInterrupt": "user_cancelled",
    "gaierror": "dns_failure",
    "FloatingPointError": "loss_nan_or_divergence",
}
"""Type, without its module -> class, unless the message says otherwise."""
MESSAGE_DECIDES: Final = ("ImportError", "JSONDecodeError", "ArrowInvalid", "DataLossError", "BadZipFile")
STOPS: Final = ("KeyboardInterrupt", "SystemExit", "GeneratorExit", "StopIteration", "SignalException")
_NOT_PYTHON: Final = re.compile(r"^(nccl|cuda|hip|RuntimeWarning|Lustre|Xid|SXid)", re.IGNORECASE)


def classify_exception(name: str, message: str, search: SignatureSearch) -> tuple[str, int, bool] | None:
    """Return class, depth and whether it is generic of an exception; None for one that says nothing.

    name: With its module, as it is printed.
    """
    short = re.split(r"[.:]", name)[-1]
    text = f"{name}: {message}"
    if short in STOPS and short != "KeyboardInterrupt":
        match = search.find(message)
        return (match.failure_class.name, match.depth, False) if match and short == "SignalException" else None
    if short == "KeyboardInterrupt":
        return "user_cancelled", Depth.END, False
    if known := EXCEPTION_CLASSES.get(short):
        match = search.find(message) if short in MESSAGE_DECIDES else None
        return (match.failure_class.name if match else known), Depth.ERROR, False
    if MEMORY_TYPES.match(short):
        match = search.find(text)
        return (match.failure_class.name if match else "host_oom_killed"), Depth.ERROR, False
    if WRAPPER_TYPES.match(short):
        match = search.find(text)
        return (match.failure_class.name, max(match.depth, Depth.NETWORK), False) if match else None
    is_of_system = bool(SYSTEM_TYPES.match(short) or PEER_LOST_TYPES.match(short) or LIBRARIES.match(name))
    if match := search.find(text if is_of_system else message, of_program=not is_of_system):
        return match.failure_class.name, match.depth, match.failure_class.name == USER_ERROR_CLASS
    if _NOT_PYTHON.match(name):
        return None
    if UNCLEAR_TYPES.match(short):
        return UNKNOWN_CLASS, Depth.END, True
    return USER_ERROR_CLASS, Depth.ERROR, True
