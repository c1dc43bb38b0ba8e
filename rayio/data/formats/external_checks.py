"""Checks of files of other programs: the number of samples in each, and whether it is whole."""

from __future__ import annotations

import io
import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rayio.data.formats.hdf5_stream import Stream, opened_by_hdf5
from rayio.data.formats.npy_header import PARSING
from rayio.data.formats.tfrecord import HEAD, TAIL, masked_crc
from rayio.errors import OtherNumberError

#: Verifies a file's content, which should hold so many samples; a ValueError, or what its library raises.
FileCheck = Callable[[memoryview, int], None]
#: Samples of a file, as it says itself; None if it does not.
FileCount = Callable[[memoryview], int | None]
#: Bytes that are inflated at a time; and the most bytes that one byte of a file may become: zlib's limit is 1032.
PIECE_BYTES, MOST_INFLATED = 1 << 20, 1100
#: Names of DLIO's arrays and datasets: samples, labels.
ARRAYS, DATASETS = ("x.npy", "y.npy"), ("records", "labels")
#: Datasets and groups of an hdf5 file that are looked at; files of more name their main dataset ``records``.
MAX_OBJECTS = 10_000


class Held(io.RawIOBase):
    """A file in memory that libraries read without a copy of all of it."""

    def __init__(self, content: memoryview) -> None:
        self.content, self.at = content, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self.at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position."""
        self.at = max(0, offset + (0, self.at, len(self.content))[whence])
        return self.at

    def readinto(self, buffer: Any) -> int:
        """Copy the next bytes."""
        view = memoryview(buffer).cast("B")
        part = self.content[self.at : self.at + len(view)]
        view[: len(part)] = part
        self.at += len(part)
        return len(part)


def _shape_of(header: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and type of the array whose npy header is read from a stream."""
    with PARSING:
        version = np.lib.format.read_magic(header)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"npy version {version}")
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(header)
    return shape, dtype


def _holds(shape: tuple[int, ...], samples: int) -> bool:
    """Return True if an array may be so many samples: along its first axis, or its last as DLIO's."""
    return 0 not in shape and (samples == 1 or (len(shape) > 0 and samples in (shape[0], shape[-1])))


def _check_shape(name: str, shape: tuple[int, ...], samples: int | None) -> None:
    if samples is not None and not _holds(shape, samples):
        raise OtherNumberError(f"{name} of shape {shape}", 0 if 0 in shape else None)


def _check_array(content: memoryview, samples: int | None) -> tuple[int, ...]:
    header = Held(content)
    shape, dtype = _shape_of(header)
    if dtype.hasobject:
        raise ValueError("an array of Python objects, which are not read")
    if (nbytes := math.prod(shape) * dtype.itemsize) != len(content) - header.at:
        raise ValueError(f"an array of {nbytes} bytes in {len(content) - header.at}")
    _check_shape("an array", shape, samples)
    return shape


def npy(content: memoryview, samples: int) -> None:
    """Verify an npy file: its header, and that its array ends with it."""
    _check_array(content, samples)


def npz(content: memoryview, samples: int) -> None:
    """Verify an npz file: every member's checksum, as ``numpy.load`` does, and the shape of ``x``."""
    shapes = {}
    with zipfile.ZipFile(Held(content)) as archive:
        members = archive.infolist()
        for member in members:
            if member.file_size > MOST_INFLATED * len(content):
                raise ValueError(f"{member.filename} of {member.file_size} bytes in a file of {len(content)}")
            with archive.open(member) as stream:
                if member.filename.endswith(".npy"):
                    shapes[member.filename] = _shape_of(stream)[0]
                while stream.read(PIECE_BYTES):
                    pass
    if not shapes:
        raise ValueError("no array")
    main = ARRAYS[0] if ARRAYS[0] in shapes else max(members, key=lambda member: member.file_size).filename
    _check_shape(main, shapes.get(main, ()), samples)


def _count_npz(content: memoryview) -> int | None:
    npz(content, 1)
    with zipfile.ZipFile(Held(content)) as archive:
        if ARRAYS[1] not in archive.namelist():
            return None
        with archive.open(ARRAYS[1]) as stream:
            shape = _shape_of(stream)[0]
    return shape[0] if len(shape) == 1 and shape[0] else None


def _records(content: memoryview, begin: int = 0) -> Iterator[memoryview]:
    """Yield the payloads of TFRecord's records, both checksums verified; the first is at byte ``begin`` of its file."""
    at = 0
    while at < len(content):
        if len(content) - at < HEAD.size + TAIL.size:
            raise ValueError(f"{len(content) - at} bytes after the last record")
        length, crc = HEAD.unpack_from(content, at)
        if crc != masked_crc(np.frombuffer(content[at : at + 8], np.uint8)):
            raise ValueError(f"no record at byte {begin + at}")
        end = at + HEAD.size + length
        if end + TAIL.size > len(content):
            raise ValueError(f"a record of {length} bytes at byte {begin + at} that does not end")
        payload = content[at + HEAD.size : end]
        if TAIL.unpack_from(content, end)[0] != masked_crc(np.frombuffer(payload, np.uint8)):
            raise ValueError(f"a record at byte {begin + at} whose checksum is wrong")
        yield payload
        at = end + TAIL.size


def _count_records(content: memoryview) -> int:
    return sum(1 for _ in _records(content))


def one_record(content: memoryview, begin: int) -> None:
    """Verify the record of TFRecord that begins at a byte of a file."""
    if (number := sum(1 for _ in _records(content, begin))) != 1:
        raise OtherNumberError(f"{number} records at byte {begin}", number)


def _exactly(count: Callable[[memoryview], int]) -> FileCheck:
    """Return a check of the number of samples."""

    def check(content: memoryview, samples: int) -> None:
        if (number := count(content)) != samples:
            raise OtherNumberError(f"{number} sample{'s' * (number != 1)}", number)

    return check


def _main_dataset(file: Any, samples: int | None) -> Any:
    """Return ``records``, or the largest dataset of all groups; links to other places and files are not followed.

    Raises:
        ValueError: there is none, or there are too many to find it, and a file is not one sample.
    """
    import h5py

    name, looked_at = DATASETS[0], 0
    if isinstance(file.get(name, getlink=True), h5py.HardLink) and isinstance(file[name], h5py.Dataset):
        return file[name]
    main: Any = None

    def look(_: str, item: Any) -> bool | None:
        nonlocal main, looked_at
        looked_at += 1
        if isinstance(item, h5py.Dataset) and (main is None or int(item.nbytes) > int(main.nbytes)):
            main = item
        return True if looked_at > MAX_OBJECTS else None

    if file.visititems(look) and samples != 1:
        raise ValueError(f"more than {MAX_OBJECTS} datasets and groups, and none is named {name}")
    if main is None:
        raise ValueError("no dataset")
    return main


def _rows_hdf5(content: memoryview, samples: int | None) -> tuple[int, str]:
    """Return the rows of the main dataset, and its path; chunks are not read, as HDF5 may crash on damage."""
    import h5py

    stream = Stream(Held(content))  # type: ignore[arg-type]
    with opened_by_hdf5(stream) as h5:
        main = _main_dataset(h5py.File(h5), samples)
        path = str(main.name)[1:]
        if not main.shape:
            raise ValueError(f"dataset {path} of shape {main.shape}")
        if main.nbytes > MOST_INFLATED * len(content):
            raise ValueError(f"dataset {path} of {main.nbytes} bytes in a file of {len(content)}")
        if main.is_virtual or main.external:
            raise ValueError(f"dataset {path} in other files")
        if main.id.get_offset() is not None and main.id.get_offset() + main.nbytes > len(content):
            raise ValueError(f"dataset {path} beyond the file's end")
        if stream.missing:
            raise ValueError(stream.missing)
        return (0 if 0 in main.shape else int(main.shape[0])), path


def _count_hdf5(content: memoryview) -> int:
    return _rows_hdf5(content, None)[0]


def hdf5(content: memoryview, samples: int) -> None:
    """Verify an hdf5 file: its description, and that its main dataset lies in it."""
    rows, path = _rows_hdf5(content, samples)
    if rows != samples and (samples != 1 or not rows):
        raise OtherNumberError(f"{rows} rows in dataset {path}", rows)


def _count_rows(content: memoryview) -> int:
    import pyarrow as pa
    from pyarrow import parquet as pq

    if bytes(content[:4]) != b"PAR1":
        raise ValueError("no PAR1 at its beginning")
    metadata = pq.read_metadata(pa.BufferReader(content))
    end = max((metadata.row_group(n).column(0).file_offset for n in range(metadata.num_row_groups)), default=0)
    if end > len(content):
        raise ValueError("a row group beyond the file's end")
    return int(metadata.num_rows)


def _lines(content: memoryview) -> tuple[int, bool]:
    """Return the number of lines, and True if the first one is a header: pandas' begins with a comma."""
    view = np.frombuffer(content, np.uint8)
    number = int(np.count_nonzero(view == ord("\n"))) + int(view[-1] != ord("\n"))
    first = bytes(content[:PIECE_BYTES]).split(b"\n", 1)[0]
    if not all(32 <= byte < 127 or byte in b"\t\r" for byte in first):
        raise ValueError("the first line is no text")
    try:
        float(first.split(b",", 1)[0])
    except ValueError:
        return number, True
    return number, False


def _count_lines(content: memoryview) -> int:
    number, has_header = _lines(content)
    return number - has_header


def jpeg(content: memoryview, samples: int) -> None:
    """Verify the beginning and the end of a jpeg."""
    if bytes(content[:3]) != b"\xff\xd8\xff":
        raise ValueError("no beginning of a jpeg")
    if bytes(content[-2:]) != b"\xff\xd9":
        raise ValueError("no end of a jpeg")
    only_one(samples)


def png(content: memoryview, samples: int) -> None:
    """Verify every chunk of a png."""
    if bytes(content[:8]) != b"\x89PNG\r\n\x1a\n":
        raise ValueError("no beginning of a png")
    at, name = 8, b""
    while at + 12 <= len(content) and name != b"IEND":
        (length,) = struct.unpack_from(">I", content, at)
        name = bytes(content[at + 4 : at + 8])
        end = at + 8 + length
        if end + 4 > len(content) or zlib.crc32(content[at + 4 : end]) != struct.unpack_from(">I", content, end)[0]:
            raise ValueError(f"a damaged chunk at byte {at}")
        at = end + 4
    if name != b"IEND" or at != len(content):
        raise ValueError("no end of a png")
    only_one(samples)


def only_one(samples: int) -> None:
    """Refuse several samples in an image.

    Raises:
        ValueError: there are several.
    """
    if samples != 1:
        raise ValueError("a file is one image")


def _one_image(check: FileCheck) -> FileCount:
    def count(content: memoryview) -> int:
        check(content, 1)
        return 1

    return count


def _count_npy(content: memoryview) -> None:
    _check_array(content, 1)


#: By format.
CHECKS: dict[str, FileCheck] = {
    "npz": npz, "npy": npy, "hdf5": hdf5, "tfrecord": _exactly(_count_records), "jpeg": jpeg, "png": png,
    "csv": _exactly(_count_lines), "parquet": _exactly(_count_rows),
}  # fmt: skip
COUNTS: dict[str, FileCount] = {
    "npz": _count_npz, "npy": _count_npy, "hdf5": _count_hdf5, "tfrecord": _count_records,
    "jpeg": _one_image(jpeg), "png": _one_image(png), "csv": _count_lines, "parquet": _count_rows,
}  # fmt: skip
