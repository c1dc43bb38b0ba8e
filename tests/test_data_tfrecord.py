"""TFRecord as others read and write it: protobuf's own library, and the numbers that TensorFlow's sources give."""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from rayio.data.formats import FORMATS
from rayio.data.formats.tfrecord import READ_BYTES, _starts, masked_crc
from rayio.data.formats.tfrecord_example import around, decode
from rayio.data.formats.tfrecord_options import TfRecordOptions
from rayio.data.layout import Layout
from rayio.errors import DataError
from rayio.schema.choice import NO_OPTIONS
from rayio.schema.distribution import Constant
from rayio.storage.stores.counted import Traffic
from rayio.storage.stores.posix import PosixFile

FORM = FORMATS["tfrecord"]


def example_class() -> Any:
    """Make TensorFlow's ``Example`` from its descriptor, as example.proto and feature.proto have it."""
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="tf", syntax="proto3")
    field = descriptor_pb2.FieldDescriptorProto

    def message(name: str, *fields: tuple[str, int, int, bool, str]) -> Any:
        made = file.message_type.add(name=name)
        for title, number, kind, is_repeated, of in fields:
            label = field.LABEL_REPEATED if is_repeated else field.LABEL_OPTIONAL
            made.field.add(name=title, number=number, type=kind, label=label, type_name=of or None)
        return made

    message("BytesList", ("value", 1, field.TYPE_BYTES, True, ""))
    message("FloatList", ("value", 1, field.TYPE_FLOAT, True, ""))
    message("Int64List", ("value", 1, field.TYPE_INT64, True, ""))
    kinds = [("bytes_list", 1, "BytesList"), ("float_list", 2, "FloatList"), ("int64_list", 3, "Int64List")]
    feature = message("Feature", *((name, n, field.TYPE_MESSAGE, False, f".tf.{of}") for name, n, of in kinds))
    feature.oneof_decl.add(name="kind")
    for inner in feature.field:
        inner.oneof_index = 0
    entry = (".tf.Features.FeatureEntry", True)
    features = message("Features", ("feature", 1, field.TYPE_MESSAGE, entry[1], entry[0]))
    pair = features.nested_type.add(name="FeatureEntry")
    pair.options.map_entry = True
    pair.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    pair.field.add(name="value", number=2, type=field.TYPE_MESSAGE, label=field.LABEL_OPTIONAL, type_name=".tf.Feature")
    message("Example", ("features", 1, field.TYPE_MESSAGE, False, ".tf.Features"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)  # type: ignore[no-untyped-call,unused-ignore]
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tf.Example"))


EXAMPLE = example_class()


def written(layout: Layout, number: int) -> bytes:
    content = io.BytesIO()
    FORM.write(content, layout, number)
    return content.getvalue()


def reseal(payload: bytes) -> bytes:
    length = struct.pack("<Q", len(payload))
    crc = [masked_crc(np.frombuffer(part, np.uint8)) for part in (length, payload)]
    return length + struct.pack("<I", crc[0]) + payload + struct.pack("<I", crc[1])


def test_the_checksum_is_crc32c_masked_as_tensorflow_does() -> None:
    crc = 0xE3069283  # of "123456789", in every catalogue of CRCs
    masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    assert masked_crc(np.frombuffer(b"123456789", np.uint8)) == masked
    # The first twelve bytes of any TFRecord whose first record has 24 bytes.
    assert reseal(bytes(24))[:12].hex() == "1800000000000000a37f4b22"


@pytest.mark.parametrize("size", [16, 100, 127, 128, 16_384, 3_000_000])
def test_protobuf_reads_our_examples(size: int) -> None:
    layout = Layout(60, 3, Constant(value=size), 5, ".tfrecord")
    content, at = written(layout, 43), 0
    for sample in (129, 130, 131):
        length, _ = struct.unpack_from("<QI", content, at)
        payload = content[at + 12 : at + 12 + length]
        example = EXAMPLE.FromString(payload)
        assert sorted(example.features.feature) == ["x", "y"]
        assert example.features.feature["y"].int64_list.value == [sample]
        (x,) = example.features.feature["x"].bytes_list.value
        assert len(x) == size
        assert int.from_bytes(x[:8], "little") == sample
        assert example.SerializeToString(deterministic=True) == payload
        at += 12 + length + 4
    assert at == len(content)


@given(x=st.binary(max_size=300), y=st.integers(0, 2**63 - 1), others=st.booleans())
def test_we_read_protobufs_examples(x: bytes, y: int, others: bool) -> None:
    example = EXAMPLE()
    if others:
        example.features.feature["a"].float_list.value.extend([0.5, 2.0])
        example.features.feature["z"].bytes_list.value.append(b"z")
    example.features.feature["y"].int64_list.value.append(y)
    example.features.feature["x"].bytes_list.value.append(x)
    found, label = decode(memoryview(example.SerializeToString()))
    assert found is not None
    assert (bytes(found), label) == (x, y)


@given(st.binary(max_size=60))
def test_bytes_that_are_no_example_are_told_in_two_kinds_of_error(content: bytes) -> None:
    try:
        x, y = decode(memoryview(content))
    except (ValueError, TypeError):
        return
    assert x is None or bytes(x) in content
    assert y is None or y >= 0


def test_a_sealed_record_without_our_example_is_refused() -> None:
    layout = Layout(1, 1, Constant(value=20), 5, ".tfrecord")
    before, after = around(20, 0)
    payload = written(layout, 0)[12:-4]
    for changed, says in [
        (bytes(len(payload)), "expected a tf.train.Example with x and y, found none"),
        (payload.replace(b"\x01x", b"\x01w"), "expected x of 20 bytes, found none"),
        (payload[:-1] + b"\x07", "expected label 0, found 7"),
        (before + bytes(20) + after, "expected checksum"),
    ]:
        out = np.zeros(20, np.uint8)
        with pytest.raises(DataError, match=rf"000000000.tfrecord: sample 0 \(row 0\): .*{says}"):
            FORM.read(lambda path, c=changed: io.BytesIO(reseal(c)), layout, layout.whole_file(0), out)


@given(st.integers(16, 1 << 40), st.integers(0, 1 << 50), st.integers(1, 300))
def test_records_start_where_their_encoding_says(row_bytes: int, file: int, per_file: int) -> None:
    layout = Layout(file + 1, per_file, Constant(value=row_bytes), 5)
    ids = range(file * per_file, file * per_file + per_file)
    sizes = [16 + len(b"".join(around(row_bytes, sample))) + row_bytes for sample in ids]
    index = np.arange(per_file + 1)
    starts = _starts(layout, np.full_like(index, file), index, np.full_like(index, row_bytes))
    assert starts.tolist() == [0, *np.cumsum(sizes).tolist()]


def test_a_long_run_is_read_in_pieces_of_whole_records(tmp_path: Any) -> None:
    layout = Layout(1, 5, Constant(value=READ_BYTES // 2 - 1000), 5, ".tfrecord")
    (tmp_path / "f").write_bytes(written(layout, 0))
    batch, asked = layout.whole_file(0), Traffic()
    out = np.zeros(batch.total_bytes, np.uint8)
    assert FORM.read(lambda path: PosixFile(tmp_path / "f", asked), layout, batch, out).tolist() == [*range(5)]  # type: ignore[arg-type,return-value]
    planned = FORM.requests(layout, batch)
    assert asked.requests == len(planned.nbytes) == 3
    assert planned.nbytes.max() <= READ_BYTES
    assert asked.nbytes == planned.nbytes.sum()


def test_no_changed_byte_of_a_record_is_harmless() -> None:
    layout = Layout(1, 1, Constant(value=20), 5, ".tfrecord")
    content, batch = written(layout, 0), layout.whole_file(0)
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1
        with pytest.raises(DataError, match=r"sample 0 .*expected (a record|CRC)"):
            FORM.read(lambda path, c=bytes(changed): io.BytesIO(c), layout, batch, np.zeros(20, np.uint8))


ZIPPED = TfRecordOptions(compression="gzip")


@pytest.mark.parametrize("compressibility", [1.0, 2.0, 7.0, 16.0])
@pytest.mark.parametrize(("rows", "size"), [(3, 16), (70, 300), (3, 20_000), (2, 1_500_000)])
def test_gzip_unpacks_our_gzip_files_to_our_plain_ones(rows: int, size: int, compressibility: float) -> None:
    layout = Layout(2, rows, Constant(value=size), 5, ".tfrecord", ZIPPED, compressibility)
    content, plain = written(layout, 1), written(replace(layout, options=NO_OPTIONS), 1)
    assert gzip.decompress(content) == plain
    assert len(content) == FORM.file_bytes(layout, np.array([1]))[0]
    if size > 1_000_000:  # the bound is near
        assert len(content) == pytest.approx(len(plain) / compressibility, rel=0.08)
        assert len(zlib.compress(plain)) < len(content)
    batch = layout.whole_file(1)
    planned = FORM.requests(layout, batch)
    assert (planned.num_opens, planned.nbytes.tolist()) == (1, [len(content)])


def test_a_gzip_stream_of_another_program_is_read() -> None:
    layout = Layout(2, 5, Constant(value=3000), 5, ".tfrecord", ZIPPED)
    plain = written(replace(layout, options=NO_OPTIONS), 1)
    batch = layout.whole_file(1, 2, 4)
    out = np.zeros(batch.total_bytes, np.uint8)
    for content in (gzip.compress(plain), gzip.compress(plain[:4000]) + gzip.compress(plain[4000:])):
        content += gzip.compress(b"") * 50  # a shorter file would be a truncated one
        read = FORM.read(lambda path, found=content: io.BytesIO(found), layout, batch, out)
        assert read.tolist() == [7, 8]


def ended(file: bytes, num_bytes: int) -> bytes:
    """Give a stream of only so many of a file's bytes, in a file that is long enough."""
    return gzip.compress(gzip.decompress(file)[:num_bytes]) + gzip.compress(b"") * 900


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda file: file[:200], "expected a file of 15505 bytes, found 200: the file is truncated"),
        (lambda file: b"BZh9" + file[4:], "expected a gzip stream of records, found none"),
        (lambda file: gzip.compress(bytes(10**8)), "expected a record with a payload of 3030 bytes, found one of 0"),
        (
            lambda file: gzip.compress(gzip.decompress(file)[:7000]) + gzip.compress(b"") * 900,
            "at byte 6092 of the gzip stream, found 908",
        ),
        (lambda file: b"", "found 0: the file is truncated"),
    ],
)
def test_a_damaged_gzip_file_and_one_that_inflates_without_end_are_told(change: Any, reason: str) -> None:
    layout = Layout(2, 5, Constant(value=3000), 5, ".tfrecord", ZIPPED)
    content, batch = change(written(layout, 0)), layout.whole_file(0, 2, 3)
    with pytest.raises(DataError, match=r"000000000.tfrecord: sample 2 \(row 2\): expected .*found") as told:
        FORM.read(lambda path: io.BytesIO(content), layout, batch, np.zeros(batch.total_bytes, np.uint8))
    assert reason in str(told.value)
