"""Training steps on record: which rows a problem gives, and what is not timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fa_kernels.measure import memory, records, training_run
from fa_kernels.measure.training_run import Way, measure_training, problems
from fa_kernels.problem import AttentionProblem

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

PROBLEM = AttentionProblem(2, 2, 32, 32, 8, "bfloat16", "bottom_right")
EAGER, SDPA = Way("torch_eager", "eager", "eager"), Way("torch_flash", "sdpa", "sdpa", "MATH")


def tiny(way: Way, problem: AttentionProblem) -> Any:
    """A model of two layers on the CPU, with the weights of every other one."""
    config = transformers.GPT2Config(
        n_positions=problem.seqlen_q, n_layer=2, n_embd=16, n_head=2, vocab_size=64,
        bos_token_id=0, eos_token_id=0, attn_pdrop=problem.dropout_p,
        attn_implementation=way.implementation,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(config).train()


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_run, "_model", tiny)
    monkeypatch.setattr(training_run, "DEVICE", "cpu")
    monkeypatch.setattr(training_run, "VOCABULARY", 64)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(memory, "free_pools", lambda: None)
    monkeypatch.setattr(memory, "peak_extra_bytes", lambda call: (call(), 1024))


def test_every_way_has_its_time_and_its_memory(on_the_cpu: None) -> None:
    rows = list(measure_training(PROBLEM, (EAGER, SDPA), steps=3))
    found = [(row.provider, row.metric) for row in rows]
    metrics = ("latency_ms", "extra_mem_bytes")
    assert found == [(way.provider, m) for way in (EAGER, SDPA) for m in metrics]
    for row in rows:
        assert (row.pass_, row.status, row.problem) == ("step", "ok", PROBLEM)
        assert row.median and row.max_abs_err is not None and row.max_abs_err > 0
        assert "2 sequences of 32 tokens" in row.detail
    assert {row.n for row in rows if row.metric == "latency_ms"} == {3}


def test_rows_are_what_a_run_takes(on_the_cpu: None, tmp_path: Path) -> None:
    rows = list(measure_training(PROBLEM, (EAGER,), steps=3))
    (tmp_path / "20270101-h200-training").mkdir()
    records.append_rows(tmp_path / "20270101-h200-training", rows)


def test_dropout_is_part_of_the_row(on_the_cpu: None) -> None:
    problem = replace(PROBLEM, dropout_p=0.1, seed=0)
    assert {row.dropout_p for row in measure_training(problem, (EAGER,), steps=3)} == {0.1}


def test_a_wrong_gradient_is_not_timed(on_the_cpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., Any] = training_run._Trainer.gradient

    def wrong(self: Any) -> Any:
        return real(self) * (1.2 if self.way is SDPA else 1.0)

    monkeypatch.setattr(training_run._Trainer, "gradient", wrong)
    rows = list(measure_training(PROBLEM, (EAGER, SDPA), steps=3))
    (failed,) = (row for row in rows if row.provider == "torch_flash")
    assert (failed.status, failed.median) == ("failed", None)
    assert "wrong: error" in failed.detail
    assert {row.status for row in rows if row.provider == "torch_eager"} == {"ok"}


def test_a_way_that_is_not_there_leaves_the_others(on_the_cpu: None) -> None:
    gone = Way("torch_cudnn", "sdpa", "sdpa", "NO_SUCH_BACKEND")
    rows = list(measure_training(PROBLEM, (gone, EAGER), steps=3))
    assert [(row.provider, row.status) for row in rows[:1]] == [("torch_cudnn", "failed")]
    assert "NO_SUCH_BACKEND" in rows[0].detail and rows[1].status == "ok"


def test_gpt2_small_at_two_lengths_with_and_without_dropout() -> None:
    found = {(p.seqlen_q, p.dropout_p) for p in problems()}
    assert found == {(1024, 0.0), (1024, 0.1), (4096, 0.0), (4096, 0.1)}
    assert {p.batch * p.seqlen_q for p in problems()} == {training_run.TOKENS}
