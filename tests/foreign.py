"""Datasets as DLIO and MLPerf Storage generate them: written with NumPy, h5py, pyarrow and Pillow, not with rayio."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

#: Samples of each file, of formats that hold several.
SEVERAL = 4


def drawn(number: int, *shape: int) -> NDArray[np.uint8]:
    """Draw the bytes of a file; files differ in size by a little."""
    return np.random.default_rng(number).integers(0, 255, shape, np.uint8)


def npz(path: Path, number: int, samples: int) -> None:
    """DLIO: samples along the last axis, labels zero."""
    np.savez(path, x=drawn(number, 40, 30 + number, samples), y=[0] * samples)


def npy(path: Path, number: int, samples: int) -> None:
    np.save(path, drawn(number, 40, 30 + number, samples))


def hdf5(path: Path, number: int, samples: int, **options: Any) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("records", data=drawn(number, samples, 40, 30 + number), **options)
        file.create_dataset("labels", data=[0] * samples)


def _crc(data: bytes) -> int:
    crc = int(google_crc32c.value(data))
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def record(payload: bytes) -> bytes:
    """Frame a record of TFRecord."""
    head = struct.pack("<Q", len(payload))
    return head + struct.pack("<I", _crc(head)) + payload + struct.pack("<I", _crc(payload))


def tfrecord(path: Path, number: int, samples: int) -> None:
    """Records of equal size; what is in them nobody asks."""
    path.write_bytes(b"".join(record(drawn(number * 100 + n, 1200 + number).tobytes()) for n in range(samples)))


def image(path: Path, number: int, samples: int) -> None:
    Image.fromarray(drawn(number, 40, 30 + number)).save(path)


def csv(path: Path, number: int, samples: int) -> None:
    """As pandas writes a frame of numbers: a header, and an index in front."""
    rows = drawn(number, samples, 50).tolist()
    header = ",".join(["", *map(str, range(50))])
    path.write_text("\n".join([header, *(",".join(map(str, [n, *row])) for n, row in enumerate(rows))]) + "\n")


def parquet(path: Path, number: int, samples: int) -> None:
    rows = [drawn(number * 100 + n, 600 + number).tobytes() for n in range(samples)]
    pq.write_table(pa.table({"data": rows}), path)


#: By format: the suffix of its files, and what writes one.
WRITERS: dict[str, tuple[str, Callable[[Path, int, int], None]]] = {
    "npz": (".npz", npz), "npy": (".npy", npy), "hdf5": (".hdf5", hdf5), "tfrecord": (".tfrecord", tfrecord),
    "jpeg": (".jpeg", image), "png": (".png", image), "csv": (".csv", csv), "parquet": (".parquet", parquet),
}  # fmt: skip


def written(folder: Path, form: str, files: int = 6, samples: int = 1, subfolders: int = 0) -> list[Path]:
    """Write a dataset in DLIO's names; give its files in their order."""
    suffix, write = WRITERS[form]
    paths = []
    for number in range(files):
        inner = folder / str(number % subfolders) if subfolders else folder
        inner.mkdir(parents=True, exist_ok=True)
        paths.append(inner / f"img_{number:04d}_of_{files:04d}{suffix}")
        write(paths[-1], number, samples)
    return sorted(paths, key=lambda path: str(path.relative_to(folder)))
