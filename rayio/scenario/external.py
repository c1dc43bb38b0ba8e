"""Datasets that other programs wrote (``dataset.external``): what the scenario leaves out is found in their folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from rayio import storage
from rayio.errors import DataError, OtherNumberError, RayioError, ScenarioError
from rayio.kinds import EXTERNALS
from rayio.schema.distribution import Distribution
from rayio.schema.fields import listed as listed_words
from rayio.schema.fields import show
from rayio.storage.address import join
from rayio.storage.listing import Listing, listed
from rayio.storage.stores.counted import Traffic
from rayio.storage.stores.opening import Settings
from rayio.units import format_bytes

if TYPE_CHECKING:
    from rayio.scenario.model import Scenario

#: A first file that is larger is not read to count its samples.
MAX_COUNTED = 1 << 30
#: A given size of samples may be so many times as large as that of the files, or as small: sizes are drawn, and have
#: headers of their formats.
NOMINAL = 1.1
#: Keys that the files themselves give, with values until they are known.
UNKNOWN: Mapping[str, Any] = {"num_files": 1, "samples_per_file": 1, "sample_bytes": 1024}
#: Listings by address, format and number of files.
_known: dict[tuple[str, str, int], Listing] = {}


def completed(data: Mapping[str, Any], read: Callable[[Mapping[str, Any]], Scenario], root: str) -> Mapping[str, Any]:
    """Return a scenario's mapping with the keys of external datasets that their files give, and absolute paths.

    ``read`` makes a scenario of a mapping; relative paths start from ``root``, or from the working directory.

    Raises:
        DataError: there is no such folder, or its files are not what the scenario says.
        StorageError: the system refuses.
    """
    dataset = data.get("dataset")
    if not isinstance(dataset, Mapping) or dataset.get("external") is not True:
        return data
    dataset = {key: value for key, value in dataset.items() if key not in UNKNOWN or value not in (None, "none")}
    scenario = read({**data, "dataset": {**UNKNOWN, **dataset}})
    if scenario.dataset.is_modelled:
        return data
    base, settings = root or str(Path.cwd()), scenario.stores
    address = join(base, scenario.dataset.path)
    size = scenario.dataset.sample_bytes
    full = {**dataset, "path": address, **_facts("dataset", dataset, dataset.get("format"), address, settings, size)}
    own = scenario.dataset.eval
    if scenario.train.evaluate is not None and own.path is not None:
        address = join(base, own.path)
        of_eval = dataset.get("eval", {})
        size = own.sample_bytes or size
        facts = _facts("dataset.eval", of_eval, full["format"], address, settings, size)
        full["eval"] = {**of_eval, "path": address, **{key: facts[key] for key in UNKNOWN if key in facts}}
    return {**data, "dataset": full}


def _facts(
    section: str, given: Mapping[str, Any], form: str | None, address: str, settings: Settings, size: Distribution
) -> dict[str, Any]:
    """Return format, number of files, samples of each and mean size of a sample; those that are given stay.

    A given ``size`` stays only where no files are: it may be nominal, and files have theirs.
    """
    if form is not None and form not in EXTERNALS:
        raise ScenarioError(
            f"dataset.external=true: dataset.format={form} is not read as it is; use {listed_words([*EXTERNALS])}"
        )
    if form is not None and all(given.get(key) is not None for key in UNKNOWN) and not _are_here(address, settings):
        return {"format": form}
    form, listing = _looked(address, form, settings)
    number = given.get("num_files") or len(listing)
    samples = samples_of(address, form, listing, settings, given.get("samples_per_file"))
    listing = _part(address, form, listing, number)
    mean = max(1, round(int(listing.sizes.sum()) / (len(listing) * samples)))
    if given.get("sample_bytes") is not None and not mean / NOMINAL <= size.expected <= mean * NOMINAL:
        raise ScenarioError(
            f"{section}.sample_bytes={show(given['sample_bytes'])}: the files of {address} have {format_bytes(mean)} a "
            f"sample; use {section}.sample_bytes=none, which takes theirs"
        )
    return {"format": form, "num_files": number, "samples_per_file": samples, "sample_bytes": mean}


def _are_here(address: str, settings: Settings) -> bool:
    """Return True if a folder of files is on this machine; of a bucket nobody asks before a run."""
    store = storage.open(address, settings)
    return store.is_local and store.exists


def _looked(address: str, form: str | None, settings: Settings) -> tuple[str, Listing]:
    """Return the format and all files of a folder."""
    forms = EXTERNALS.usable() if form is None else {form: EXTERNALS[form]}
    by_extension = {extension: name for name, each in forms.items() for extension in each.extensions}
    listing = listed(address, settings, by_extension)
    if listing is None:
        raise DataError(
            f"{address}: no such folder (dataset.external=true); correct dataset.path, or give dataset.format, "
            "num_files, samples_per_file and sample_bytes to simulate without the files"
        )
    present = sorted({by_extension[PurePosixPath(name).suffix.lower()] for name in listing.names})
    if len(present) > 1:
        raise DataError(f"{address}: the folder has files of {' and '.join(present)}; give dataset.format")
    return present[0], listing


def _part(address: str, form: str, listing: Listing, number: int) -> Listing:
    """Return the first files, and remember them."""
    if number > len(listing):
        raise DataError(
            f"{address}: the folder has {len(listing)} {form} files, and dataset.num_files={number}; use at most "
            f"{len(listing)}"
        )
    part = _known[address, form, number] = listing.first(number)
    return part


#: The beginning of every file in gzip; with two bytes, one length in 65536 of a tfrecord's first record begins like it.
GZIP = b"\x1f\x8b\x08"


def samples_of(address: str, form: str, listing: Listing, settings: Settings, given: int | None) -> int:
    """Return the samples of a file: those given, if the first file agrees, else those it has.

    Raises:
        DataError: the first file is none of its format, or has another number of samples.
    """
    store, name, size = storage.open(address, settings), listing.names[0], int(listing.sizes[0])
    if size > MAX_COUNTED:
        if given is None:
            raise DataError(
                f"{store.full(name)}: {format_bytes(size)} are not read to count the samples; give "
                "dataset.samples_per_file"
            )
        return given
    external = EXTERNALS[form]
    try:
        with store.open(name, Traffic()) as file:
            content = external.content(file, size)
        if bytes(content[:3]) == GZIP:
            raise DataError(f"{store.full(name)}: not yet: {form} files compressed with gzip; decompress them")
        if given is None:
            number = external.count(content)
            if number == 0:
                raise OtherNumberError("no samples", 0)
            return number or 1
        external.verify(content, given)
    except (RayioError, MemoryError):
        raise
    except OtherNumberError as error:
        if error.number == 0:
            raise DataError(f"{store.full(name)}: the file has no samples; write it again, or remove it") from error
        raise DataError(
            f"{store.full(name)}: expected dataset.samples_per_file={given}, found {error}; leave the key out, which "
            "takes the number of the first file, or correct it"
        ) from error
    except Exception as error:  # libraries raise a dozen classes for invalid bytes
        reason = " ".join(str(error).split()) or type(error).__name__
        wanted = "" if given is None else f" with dataset.samples_per_file={given}"
        raise DataError(f"{store.full(name)}: expected a file of {form}{wanted}, found none ({reason})") from error
    return given


def listing_of(scenario: Scenario) -> Listing | None:
    """Return the files of a scenario's external dataset; None if they are not on this machine.

    Raises:
        DataError: there are fewer files than the scenario has.
        StorageError: the system refuses.
    """
    dataset = scenario.dataset
    address = join(str(Path.cwd()), dataset.path)
    known = _known.get((address, dataset.format, dataset.num_files))
    if known is not None or dataset.is_modelled or dataset.format not in EXTERNALS:
        return known
    listing = listed(address, scenario.stores, EXTERNALS[dataset.format].extensions)
    return None if listing is None else _part(address, dataset.format, listing, dataset.num_files)


def check_unchanged(scenario: Scenario, address: str, listing: Listing | None) -> Listing:
    """Return the files of a run, which must be there, and those that its plan was made for.

    Raises:
        DataError: the folder, or a file, is missing or changed.
        StorageError: the system refuses.
    """
    dataset = scenario.dataset
    now = listed(address, scenario.stores, EXTERNALS[dataset.format].extensions)
    if now is None:
        raise DataError(f"{address}: no such folder (dataset.external=true); correct dataset.path")
    if listing is None:
        raise DataError(f"{address}: the folder appeared after it was looked for; run again")
    if change := listing.change(now):
        _known.pop((address, dataset.format, dataset.num_files), None)
        raise DataError(f"{join(address, change)}; run again with the files as they are now")
    return listing
