import math

import pytest

pytest.importorskip("torch", reason="the TensorBoard sink writes through torch")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from preheat.monitor.tensorboard import TensorBoard


def record(step, loss=2.0, **more):
    return {"tokens": step * 4096, "step": step, "stage": "main", "loss": loss, "lr": 1e-3, "mfu": 0.4, **more}


def scalars(folder, tag):
    events = EventAccumulator(str(folder), purge_orphaned_data=True)
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_scalars_stand_over_tokens(tmp_path):
    board = TensorBoard(tmp_path)
    board.step(record(1, rope_theta=None, extra=7))
    board.step(record(2, loss=math.nan))
    board.step(record(3, loss=1.5, held_out={"prose": {"loss": 1.0, "bits_per_byte": 0.5}}))
    board.event({"tokens": 5, "kind": "spike", "cause": "x"})
    board.close()
    assert scalars(tmp_path, "train/loss") == [(4096, 2.0), (3 * 4096, 1.5)]
    assert scalars(tmp_path, "held_out_bits_per_byte/prose") == [(3 * 4096, 0.5)]
    assert scalars(tmp_path, "other/extra") == [(4096, 7.0)]
    assert scalars(tmp_path, "schedule/step") == [(4096, 1.0), (8192, 2.0), (12288, 3.0)]


def test_a_resume_hides_the_steps_that_are_done_again(tmp_path):
    first = TensorBoard(tmp_path)
    for step in range(1, 6):
        first.step(record(step, loss=9.0))
    first.close()
    second = TensorBoard(tmp_path, resume_tokens=3 * 4096)
    second.step(record(4, loss=1.0))
    second.close()
    assert scalars(tmp_path, "train/loss") == [(4096, 9.0), (8192, 9.0), (12288, 9.0), (16384, 1.0)]
