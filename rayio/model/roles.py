"""The whole data path: the work of each role, in order.

A run is these functions. Every rank calls ``train``: for each step it takes a batch from its prefetch queue, computes
(a sleep), meets the other ranks, and saves a checkpoint or evaluates when that is due. When the queue's window has
room, a reader calls ``read_lease`` for the next steps: it computes the samples, reads their files, verifies and decodes
them, and returns the batch. A checkpoint is cut into shards, and each goes to a writer that calls ``write_shard``; an
asynchronous one is copied first and written while training continues; from a burst tier, ``drain_shard`` copies it on.
An evaluation takes batches of another dataset from a separate queue, read by the same readers. Processes of ``stages``
come and go during training.

The roles know no process, file or clock. An engine gives them an ``Env``: on Ray each role is an actor and queues are
remote, in the local engine they share one process, on the virtual clock a sleep takes no time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from rayio.model.env import Env, Shard
from rayio.model.ledger import Tally
from rayio.model.loading import Loading
from rayio.model.manifest import NAME, Manifest, Restored
from rayio.model.queue import Delivery, Lease
from rayio.model.training import Training
from rayio.model.workflow import FIRST, Process, StageTally
from rayio.place import BEGINNING, Start, Where
from rayio.scenario.checkpoint import Phases
from rayio.scenario.device_copy import DeviceCopy
from rayio.storage.base import Served, Storage


async def read_lease(env: Env, loading: Loading, lease: Lease) -> list[Delivery]:
    """A reader's work: read the steps of one lease, in order. A repeated call returns the same batches."""
    batches = []
    for step in lease.steps:
        at = Where(lease.rank, lease.epoch, step, lease.attempt)
        batches.append(await load_batch(env, loading, at, lease.worker))
    return batches


async def load_batch(env: Env, loading: Loading, at: Where, worker: int, lane: int = 0) -> Delivery:
    """Read and decode one batch. The digest is computed from the sample ids in the bytes."""
    load = loading.of(at, env.kept)
    served = await env.read(load.requests, load.from_files, at, lane=lane, samples=load.samples)
    load.keep(env.kept)
    if served.value is not None:
        load.count_cpu(served.cpu_seconds)
    if seconds := load.decode_seconds:
        if env.cores is not None and loading.is_work:
            await env.compute("decode", env.cores, load.decode_shares, at, lane=lane)
        else:
            await env.sleep("decode", seconds, at, lane=lane)
    if loading.decoding is not None and served.value is not None:
        await env.work("decode", load.decodings(served.value), at, lane=lane)
        load.count_decoding()
    return load.delivery(served.value, worker, served.moved, served.skipped)


async def train(env: Env, training: Training, tally: Tally, start: Start = BEGINNING) -> None:
    """A rank's life: for every step from the start on take, compute, synchronise; checkpoint and evaluate when due."""
    attempt = start.attempt
    at = Where(training.rank, attempt=attempt)
    env.span("startup", env.born, env.kernel.now(), at)
    if attempt:
        await env.begin_again(at)
    if training.restored is not None:
        shards = await restore(env, training, tally, training.restored, at._replace(epoch=start.epoch))
        if shards and attempt and training.is_own_restored:  # manifests may have been lost
            undrained = {shard.path for left in training.held if left.is_undrained for shard in left.shards}
            env.durable_are([shard for shard in shards if shard.path not in undrained], at, in_burst=False)
            env.durable_are([shard for shard in shards if shard.in_burst], at, in_burst=True)
    if env.drains is not None:
        await env.drains.begin(training.held, tally, at)
    if training.phases is not None:
        await save_and_restore(env, training, tally, training.phases, attempt)
    clock, copy, bubble = training.clock(), training.copy, training.bubble
    for epoch in range(start.epoch, training.epochs):
        first = start.first_step(epoch)
        pause = training.next_pause(epoch, first)
        for step in range(first, training.steps(epoch)):
            at = Where(training.rank, epoch, step, attempt)
            batch = await (env.take(at) if copy is None else take_copied(env, training, copy, at))
            tally.add(batch)
            batch.done()  # the compute is emulated: it does not use the bytes
            seconds = training.compute_seconds(at)
            if bubble:
                await env.pause("bubble", seconds * bubble, at)
            end = await env.compute_and_synchronise(seconds, training.sync_after(epoch, step), at)
            saves = clock is None or (training.sees_all(epoch, step) and clock.is_due(end))
            if step == pause or (saves and clock is not None):
                if saves:
                    shards, tally.chain = training.shards(at, tally.chain), training.chain(at, tally.chain)
                    if shards:
                        await save(env, training, shards, at)
                env.raise_failure()
                for number in training.evaluations(at):
                    await evaluate(env, training, tally, number, at)
                if saves:
                    env.passed(training.checkpoints(at), tally)
                pause = training.next_pause(epoch, step + 1)
            elif env.failure is not None:
                env.raise_failure()
    await env.checkpoints_durable(at)
    env.span("life", env.born, env.kernel.now(), Where(training.rank, attempt=attempt), lane=1)
    await env.reported(at)


async def take_copied(env: Env, training: Training, copy: DeviceCopy, at: Where) -> Delivery:
    """Take a batch that is then on the accelerator; with overlap, start to take and copy the next one."""
    batch = await env.take_ahead(at)
    if batch is None:
        batch = await env.take(at)
        await env.pause("device_copy", batch.nbytes / copy.bandwidth, at, nbytes=batch.nbytes)
    if copy.overlap and at.step + 1 < training.steps(at.epoch):
        env.copy_ahead(copy.bandwidth, at._replace(step=at.step + 1))
    return batch


async def save(env: Env, training: Training, shards: Sequence[Shard], at: Where) -> None:
    """Save a rank's part of a checkpoint: wait until it is durable, or only until the state is copied."""
    if training.snapshot_rate is None:
        await env.checkpoint(shards, at)
    else:
        seconds = sum(shard.num_bytes for shard in shards) / training.snapshot_rate
        await env.checkpoint_behind(shards, seconds, at)


async def save_and_restore(env: Env, training: Training, tally: Tally, phases: Phases, attempt: int) -> None:
    """Save a number of checkpoints one after another, and read them back, with pauses; ranks begin each together."""
    rank = training.rank
    at = Where(rank, 0, 0, attempt)
    for number in range(phases.writes):
        at = Where(rank, 0, number, attempt)
        if phases.pause:
            await env.sleep("gap", phases.pause, Where(rank, attempt=attempt))
        await env.meet(at)
        if shards := training.shards_of(0, number):
            await save(env, training, shards, at)
        env.raise_failure()
    await env.checkpoints_durable(at)
    await env.reported(at)
    if phases.gap:
        await env.sleep("gap", phases.gap, Where(rank, attempt=attempt))
    for number in range(phases.reads):
        if phases.pause:
            await env.sleep("gap", phases.pause, Where(rank, attempt=attempt))
        await env.meet(Where(rank, 0, phases.writes + number, attempt))
        written = training.written(0, number)
        if env.drains is not None and not phases.shift:
            in_burst = frozenset(link.folder for link in written.chain if env.drains.holds(link.folder))
            written = replace(written, in_burst=in_burst)
        await restore(env, training, tally, written, Where(rank, attempt=attempt))


async def restore(env: Env, training: Training, tally: Tally, restored: Restored, at: Where) -> Sequence[Shard]:
    """Read back a rank's part of a checkpoint through its writers, increment by increment, and verify every byte.

    If rank 0 reads for all, all ranks wait until it has sent them the state; they meet at ``at``, before any step.
    """
    seconds, all_shards = training.broadcast_seconds, list[Shard]()
    for number, link in enumerate(restored.chain, 1):
        shards, is_sent = training.restored_shards(restored, link), seconds and number == len(restored.chain)
        all_shards += shards
        if shards or is_sent:
            place = at._replace(epoch=link.epoch, step=link.step)
            served = await env.restore(shards, place, (seconds, at) if is_sent else None)
            tally.load(part.moved for part in served)
    return all_shards


async def evaluate(env: Env, training: Training, tally: Tally, epoch: int, at: Where) -> None:
    """Evaluate after a step: the rank's share of the evaluation dataset, batch by batch, without barriers."""
    phase = training.evaluation
    assert phase is not None
    begun = env.kernel.now()
    for step in range(phase.steps(epoch)):
        here = Where(at.rank, epoch, step, at.attempt)
        batch = await env.take(here, "eval_data_wait", lane=1)
        tally.add(batch, evaluating=True)
        batch.done()
        seconds = phase.compute_seconds(here)
        if env.computes_on_core:
            started = env.kernel.now()
            await env.burn(seconds)
            env.span("eval_compute", started, env.kernel.now(), here, lane=1)
        else:
            await env.sleep("eval_compute", seconds, here, lane=1)
    env.span("evaluate", begun, env.kernel.now(), at)


async def write_shard(env: Env, shard: Shard, at: Where) -> Served[None]:
    """A checkpoint writer's work: generate and write one shard, to a burst tier if there is one; durable on return."""
    await env.withdraw(f"{shard.path.rpartition('/')[0]}/{NAME}", at, in_burst=env.burst is not None)
    return await env.write(shard, at)


async def drain_shard(env: Env, shard: Shard, at: Where) -> Served[None]:
    """A checkpoint writer's work behind training: copy one shard from the burst tier to storage; durable on return."""
    await env.withdraw(f"{shard.path.rpartition('/')[0]}/{NAME}", at)
    return await env.drain(shard, at)


async def clear_tier(env: Env, names: Sequence[str], kept: Collection[str]) -> None:
    """A checkpoint writer's work: remove its files of all checkpoints but the ``kept`` ones from the burst tier."""
    if env.burst is not None and env.burst.store is not None:
        await env.kernel.threaded(partial(env.burst.clear, kept, names))


async def run_process(env: Env, work: Process, source: Storage | None) -> StageTally:
    """A process of a stage: read its files from ``source``, then compute and write its files in turns."""
    at, tally = Where(), StageTally(1)
    for shard in work.reads:
        assert source is not None
        address = FIRST - work.stage, 0, work.number * len(work.reads) + shard.writer
        tally.read(await env.read_file(shard, source, address, at))
    for written in work.writes or (None,):
        if work.seconds:
            await env.sleep("stage_compute", work.seconds, at)
        if written is not None:
            tally.wrote(await env.write_file(written, at))
    if work.opens:
        files, storage = (work.writes, env.storage) if work.writes else (work.reads, source)
        assert storage is not None
        tally.opens += await env.open_files(files, storage, work.opens, (FIRST - work.stage, 1, work.number), at)
    env.span("life", env.born, env.kernel.now(), at, lane=1)
    return tally


async def read_shard(env: Env, shard: Shard, at: Where) -> Served[None]:
    """A checkpoint writer's work when a run begins again: read and verify one shard."""
    return await env.load(shard, at)


async def complete(
    env: Env, manifest: Manifest, index: Mapping[str, bytes], at: Where, *, fsync: bool, in_burst: bool = False
) -> None:
    """The completing writer's work: write the manifest of a checkpoint whose files are all durable, after its index."""
    files = {**index, NAME: manifest.content()}
    paths = {f"{manifest.folder}/{name}": content for name, content in files.items()}
    await env.publish(paths, at, fsync=fsync, in_burst=in_burst)
