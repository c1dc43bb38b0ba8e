"""Keys of DLIO in a scenario: the line says what they are called here, and the table of them is right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rayio.cli.completion import keys
from rayio.errors import ScenarioError
from rayio.scenario.dlio_keys import KEYS, hint
from rayio.scenario.load import load
from rayio.scenario.model import Scenario
from rayio.scenario.write import json_schema

#: A configuration as DLIO ships them.
UNET3D = """
model: {name: unet3d, type: cnn, model_size: 499153191}
framework: pytorch
workflow: {generate_data: False, train: True, checkpoint: True}
dataset:
  data_folder: data/unet3d/
  format: npz
  num_files_train: 168
  num_samples_per_file: 1
  record_length_bytes: 146600628
  record_length_bytes_stdev: 68341808
reader: {data_loader: pytorch, batch_size: 7, read_threads: 4, file_shuffle: seed, sample_shuffle: seed}
train: {epochs: 5, computation_time: 0.323}
checkpoint: {checkpoint_folder: checkpoints/unet3d, checkpoint_after_epoch: 5, epochs_between_checkpoints: 2}
"""


def test_a_configuration_of_dlio_is_recognised(tmp_path: Path) -> None:
    file = tmp_path / "dlio.yaml"
    file.write_text(UNET3D)
    with pytest.raises(
        ScenarioError, match=r"dlio.yaml:\d+: .* is a DLIO key; use .*rayio import dlio FILE converts"
    ) as told:
        load(file)
    assert "\n" not in str(told.value)


def test_each_key_is_told_by_its_name_here() -> None:
    for name, key in KEYS.items():
        remedy = f"use {key.to} (" if key.to else f"leave it out: {key.why} ("
        assert remedy in str(hint(name.split("."), 1))
    with pytest.raises(ScenarioError, match=r"override: train.computation_time=0.3: is a DLIO key; use train.compute "):
        load("unet3d-small", ["train.computation_time=0.3"])


def test_older_names_and_keys_without_a_counterpart_are_recognised_too() -> None:
    with pytest.raises(ScenarioError, match=r"use loader.num_workers for data_reader.read_threads"):
        load("unet3d-small", ["data_reader={read_threads: 4}"])
    with pytest.raises(ScenarioError, match="is a DLIO key; a scenario has no such section"):
        load("unet3d-small", ["reader={pin_memory: true}"])
    with pytest.raises(ScenarioError, match="did you mean num_workers"):
        load("unet3d-small", ["loader.num_worker=4"])


def test_the_table_names_keys_that_there_are() -> None:
    known = {name for name, _ in keys(json_schema())}
    known |= {".".join(name.split(".")[:depth]) for name in known for depth in (1, 2, 3)}
    assert all(
        key.to in known or key.to in ("", "expect.au_dlio") or re.match(r"the (command|scheme) ", key.to)
        for key in KEYS.values()
    )
    assert "expect" in Scenario.model_fields
