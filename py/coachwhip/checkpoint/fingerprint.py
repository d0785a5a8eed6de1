"""A checkpoint's fingerprint: the same for the same files, wherever they lie."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from ..errors import CheckpointError

SAMPLES, SAMPLE_BYTES = 64, 4096
"""How often, and how much, the weights of a file are looked at."""
_WHOLE = (".json", ".jinja")


def fingerprint(folder: Path) -> str:
    """Returns 32 hex digits over the files that decide about a model's texts.

    Configuration, tokenizer and templates are read whole; of each weight file the size, the
    beginning, which has the names of all tensors, and `SAMPLES` places spread over the rest.
    Training changes weights everywhere, so it changes some of these.

    Raises:
        CheckpointError: A file cannot be read.
    """
    found = sha256()
    try:
        for path in sorted(folder.iterdir()):
            if not path.is_file() or path.suffix not in (*_WHOLE, ".safetensors"):
                continue
            data = path.read_bytes() if path.suffix in _WHOLE else _samples(path)
            found.update(f"{path.name} {len(data)}\n".encode())
            found.update(data)
    except OSError as error:
        raise CheckpointError(folder, f"cannot be read: {error}", "restore the file") from None
    return found.hexdigest()[:32]


def _samples(path: Path) -> bytes:
    size = path.stat().st_size
    parts = [size.to_bytes(8, "little")]
    with path.open("rb") as file:
        for i in range(SAMPLES):
            file.seek(i * size // SAMPLES)
            parts.append(file.read(SAMPLE_BYTES))
    return b"".join(parts)
