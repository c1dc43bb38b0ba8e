"""The loader of a workload of DLIO as keys of a scenario."""

from __future__ import annotations

from collections.abc import Sequence

from rayio.imports.dlio_reading import Reading

#: DLIO's loaders that rayio emulates, and others with the reason why not.
_LOADERS = ("pytorch", "tensorflow", "dali", "native_dali")
_OTHERS = {
    "synthetic": "it reads no files; for steps without storage use pytorch, and storage.model=memory",
    "none": "DLIO has no loader for it; use pytorch, tensorflow, dali or native_dali",
}
#: Formats that DALI's own operators read in DLIO.
_OF_DALI = ("tfrecord", "npy", "jpeg", "png")

_LOADER, _FORMAT, _BATCH = "reader.data_loader", "dataset.format", "reader.batch_size"
_SAVES, _RESTORES = "checkpoint.num_checkpoints_write", "checkpoint.num_checkpoints_read"
_WORKERS, _AHEAD, _THREADS = "reader.read_threads", "reader.prefetch_size", "reader.computation_threads"


def put_loader(reading: Reading) -> None:
    """Map the loader."""
    framework = reading.choice("framework", "tensorflow", ("tensorflow", "pytorch"))
    if (why := _OTHERS.get(str(reading.given.get(_LOADER, "")).lower())) is not None:
        reading.refuse(_LOADER, why)
        loader = framework
    else:
        loader = reading.choice(_LOADER, framework, _LOADERS)
    form = reading.out[_FORMAT][0]
    _check(reading, framework, loader, form)
    reading.put("loader.batch_size", reading.whole(_BATCH, 1, 1), _BATCH)
    workers, prefetch = reading.whole(_WORKERS, 1), reading.whole(_AHEAD, 2)
    if loader in ("dali", "native_dali"):
        workers = _dali(reading, workers, prefetch, is_native=loader == "native_dali")
    else:
        if loader == "tensorflow":
            workers = max(1, workers)  # as DLIO's does
        reading.put("loader.num_workers", workers, _WORKERS)
        if workers:
            reading.put("loader.prefetch_factor", -(-prefetch // workers) or 2, _AHEAD, _WORKERS)
        else:
            reading.unused(_AHEAD, "without workers (read_threads) nothing is prefetched")
    if loader == "tensorflow" and workers > 1:
        reading.differs(_WORKERS, "its parallel reads are workers, which take batches in turn")
    is_stream = loader in ("tensorflow", "native_dali") and form == "tfrecord"
    _access(reading, form, is_stream=is_stream, has_buffer=loader == "tensorflow")
    _shuffle(reading, loader, is_stream=is_stream)
    decode = reading.times("reader.preprocess_time", "reader.preprocess_time_stdev")
    if decode:
        reading.put("loader.decode", decode, "reader.preprocess_time", "reader.preprocess_time_stdev")
    _threads(reading, loader, workers, is_decoded=bool(decode))


def _check(reading: Reading, framework: str, loader: str, form: str) -> None:
    """Refuse what DLIO cannot load either."""
    is_given = {"framework", _LOADER} <= {*reading.given}
    if is_given and _LOADER not in reading.wrong and loader in ("pytorch", "tensorflow") and loader != framework:
        reading.refuse(_LOADER, f"does not go with framework={framework}, as in DLIO; give both of one framework")
    elif not reading.flag("workflow.train", default=True) or {_LOADER, _FORMAT} & reading.wrong:
        pass  # nothing is read, or refused already
    elif loader in ("pytorch", "dali") and form == "tfrecord":
        where = next(key for key in (_FORMAT, _LOADER, "framework") if key in reading.given)
        name = "PyTorch" if loader == "pytorch" else "DALI"
        remedy = "give dataset.format"
        if reading.given.keys() & {_SAVES, _RESTORES}:
            remedy += ", or workflow.train=False for checkpoints alone"
        reading.refuse(where, f"DLIO's {name} loader reads no tfrecord, its default format; {remedy}")
    elif loader == "native_dali" and form not in _OF_DALI:
        reading.refuse(_FORMAT, f"DALI reads no {form}; use {', '.join(_OF_DALI[:-1])} or {_OF_DALI[-1]}, or dali")


def _dali(reading: Reading, threads: int, prefetch: int, *, is_native: bool) -> int:
    """Map a pipeline of DALI: one for each rank, which makes a batch at a time; return its workers."""
    reading.put("loader.num_workers", 1, _LOADER)
    reading.put("loader.prefetch_factor", prefetch or (1 if is_native else 2), _AHEAD)
    if is_native:
        reading.unused(_WORKERS, "DALI's readers have a thread each; its threads serve its other operators")
        reading.differs(_LOADER, "a worker reads and prepares one sample after the other, as DALI's reader would")
    else:
        reading.put("loader.io_depth", max(1, threads), _WORKERS)
        reading.differs(_LOADER, "one worker, with read_threads requests and preparations of a batch at a time")
    return 1


def _threads(reading: Reading, loader: str, workers: int, *, is_decoded: bool) -> None:
    """Map the threads that prepare samples: all those of a rank in DLIO, those of a worker in a scenario."""
    threads = reading.whole(_THREADS, 1, 1)
    if loader == "dali" and is_decoded:
        reading.put("loader.decode_threads", max(1, reading.whole(_WORKERS, 1)), _WORKERS)
    if loader != "tensorflow":
        reading.unused(_THREADS, "only TensorFlow's loader has such threads")
    elif not is_decoded:
        reading.unused(_THREADS, "nothing is prepared without preprocess_time")
    elif _THREADS in reading.given:
        each = -(-threads // workers)
        reading.put("loader.decode_threads", each, _THREADS, _WORKERS)
        if each * workers != threads:
            reading.differs(_THREADS, f"{workers} workers have {each} each, DLIO's rank has {threads} in all")


def _access(reading: Reading, form: str, *, is_stream: bool, has_buffer: bool) -> None:
    if reading.choice("reader.read_type", "on_demand", ("on_demand", "memory")) == "memory":
        reading.put("loader.file_access", "in_memory", "reader.read_type")
        reading.unused("reader.transfer_size", "files are read whole with read_type: memory")
    elif form == "tfrecord" and "dataset.compression" in reading.out:
        reading.put("loader.file_access", "whole_file", "dataset.compression")
        reading.differs("dataset.compression", "compressed files are read whole, not streamed")
        reading.unused("reader.transfer_size", "compressed files are read whole")
    elif is_stream:
        reading.put("loader.file_access", "streamed", _LOADER, "framework", _FORMAT)
        if not has_buffer:
            reading.unused("reader.transfer_size", "DALI's reader has no such buffer")
        elif size := reading.whole("reader.transfer_size", 0):
            reading.put("loader.buffer_bytes", size, "reader.transfer_size")
    else:
        reading.unused("reader.transfer_size", "only TensorFlow's streams of TFRecord have such a buffer")
    access = reading.choice("reader.file_access", "multi", ("multi", "shared", "collective"))
    if access == "multi":
        reading.given.pop("reader.file_access", None)


def _shuffle(reading: Reading, loader: str, *, is_stream: bool) -> None:
    names: Sequence[str] = ("reader.file_shuffle", "reader.sample_shuffle")
    for name in names:
        if reading.given.get(name) is False:  # YAML's reading of a bare off
            reading.given[name] = "off"
    files, samples = (reading.choice(name, "off", ("off", "seed", "random")) != "off" for name in names)
    shuffle = "global" if samples and not is_stream else "file" if files else "none"
    reading.put("loader.shuffle", shuffle, *names)
    if is_stream and samples:
        reading.differs(names[1], "not modelled: the first fill of the shuffle buffer, which changes no request")
    elif loader == "pytorch":
        for name, is_on in zip(names, (files, samples), strict=True):
            if is_on:
                reading.differs(name, "it acts here; in DLIO's PyTorch loader it does nothing")
