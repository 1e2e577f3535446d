"""Text on record: which rows a problem gives, and what is not timed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fa_kernels import __main__ as cli
from fa_kernels.cuda import launch
from fa_kernels.measure import generation_run, memory, records, sweep
from fa_kernels.measure.generation_run import (
    EAGER,
    EAGER_CACHED,
    OURS,
    OURS_CACHED,
    WAYS,
    Way,
    marks_of,
    measure_generation,
    new_tokens,
    problems,
)
from fa_kernels.problem import AttentionProblem

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

PROBLEM = AttentionProblem(2, 2, 24, 40, 8, "bfloat16", "bottom_right")


def tiny(way: Way, problem: AttentionProblem) -> Any:
    """A model of two layers on the CPU, with the weights of every other one."""
    config = transformers.GPT2Config(
        n_positions=problem.seqlen_k, n_layer=2, n_embd=16, n_head=2, vocab_size=64,
        bos_token_id=0, eos_token_id=None, initializer_range=0.1,
        attn_implementation=way.implementation,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(config).to(torch.bfloat16).eval()


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from fa_kernels.integrations import fixed_cache
    from fa_kernels.integrations.transformers import register

    register()
    fixed_cache.register(backend="numpy")
    monkeypatch.setattr(generation_run, "_model", tiny)
    monkeypatch.setattr(generation_run, "DEVICE", "cpu")
    monkeypatch.setattr(generation_run, "VOCABULARY", 64)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(memory, "free_pools", lambda: None)
    monkeypatch.setattr(memory, "peak_extra_bytes", lambda call: (call(), 1024))


@pytest.mark.usefixtures("on_the_cpu")
def test_all_four_ways_agree_and_have_their_times_and_memory(tmp_path: Path) -> None:
    rows = list(measure_generation(PROBLEM, repeats=2))
    assert {row.status for row in rows} == {"ok"}, [row.detail for row in rows]
    found = [(row.provider, row.variant, row.metric, row.seqlen_k) for row in rows]
    expected: list[tuple[str, str, str, int]] = []
    for way in WAYS:
        marks = (1, 4, 8, 12, 16) if way.cache else (1, 2, 3, 4)
        expected += [(way.provider, way.variant, "latency_ms", 24 + n) for n in marks]
        expected.append((way.provider, way.variant, "extra_mem_bytes", 24 + marks[-1]))
    assert found == expected
    for row in rows:
        assert (row.pass_, row.batch, row.seqlen_q) == ("step", 2, 24)
        assert row.max_abs_err is not None and 0 < row.max_abs_err < 0.1
        assert row.n == (2 if row.metric == "latency_ms" else 1)
    eager = [row for row in rows if row.variant == "eager" and row.metric == "latency_ms"]
    times = [row.median or 0.0 for row in eager]
    assert times == sorted(times)
    for row in rows:
        plain = "plain call, no CUDA graph: RuntimeError" in row.detail
        assert plain == ("cached" in row.variant or "split_kv" in row.variant)
    (tmp_path / "20270101-h200-generation").mkdir()
    records.append_rows(tmp_path / "20270101-h200-generation", rows)


@pytest.mark.usefixtures("on_the_cpu")
def test_every_way_writes_the_same_text_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64 no two tokens are equally likely by rounding: all texts must be equal."""
    monkeypatch.setattr(generation_run, "_model", lambda way, p: tiny(way, p).double())
    texts = []
    for way in WAYS:
        writer = generation_run._Writer(way, PROBLEM, generation_run._model(way, PROBLEM))
        tokens = torch.arange(80).reshape(2, 40) % 64
        writer.prepare(tokens)
        assert len(writer.write(tokens)) == len(marks_of(new_tokens(PROBLEM, way)))
        first = tokens.clone()
        tokens[:, 24:] = 0
        writer.write(tokens)  # a second text in the same cache
        assert torch.equal(first[:, :28], tokens[:, :28])
        texts.append(tokens)
    assert all(torch.equal(text[:, :28], texts[0][:, :28]) for text in texts)
    assert torch.equal(texts[2], texts[3])
    assert not torch.equal(texts[2], torch.arange(80).reshape(2, 40) % 64)


@pytest.mark.usefixtures("on_the_cpu")
@pytest.mark.parametrize("wrong", [OURS, OURS_CACHED, EAGER_CACHED])
def test_a_way_with_other_logits_is_not_timed(monkeypatch: pytest.MonkeyPatch, wrong: Way) -> None:
    real = generation_run._Writer.logits

    def off(self: Any, tokens: Any) -> Any:
        found = real(self, tokens)
        return found + 0.5 * (self.way == wrong and tokens.shape[1] > PROBLEM.seqlen_q)

    monkeypatch.setattr(generation_run._Writer, "logits", off)
    rows = list(measure_generation(PROBLEM, (EAGER, wrong), repeats=1))
    (failed,) = (row for row in rows if row.status != "ok")
    assert (failed.provider, failed.variant) == (wrong.provider, wrong.variant)
    assert failed.status == "failed" and failed.median is None and "wrong: error" in failed.detail
    assert {row.variant for row in rows if row.status == "ok"} == {"eager"}


@pytest.mark.usefixtures("on_the_cpu")
def test_a_way_that_is_not_there_leaves_the_others() -> None:
    gone = Way("torch_cudnn", "sdpa", "no_such_attention")
    rows = list(measure_generation(PROBLEM, (EAGER, gone), repeats=1))
    (failed,) = (row for row in rows if row.status != "ok")
    assert failed.provider == "torch_cudnn" and "no_such_attention" in failed.detail


@pytest.mark.usefixtures("on_the_cpu")
def test_a_cache_is_fed_what_it_has_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    fed: dict[str, list[int]] = {}

    def watched(way: Way, problem: AttentionProblem) -> Any:
        model = tiny(way, problem)
        real = model.forward

        def forward(tokens: Any, *args: Any, **options: Any) -> Any:
            fed.setdefault(way.variant, []).append(tokens.shape[1])
            return real(tokens, *args, **options)

        model.forward = forward
        return model

    short = replace(PROBLEM, seqlen_k=27)
    for way in (EAGER, OURS_CACHED):
        writer = generation_run._Writer(way, short, watched(way, short))
        tokens = torch.zeros(2, 27, dtype=torch.long)
        writer.prepare(tokens)
        fed.pop(way.variant, None)
        writer.write(tokens)
    assert fed == {"eager": [24, 25, 26], "decode_split_kv": [24, 1, 1]}


@pytest.mark.usefixtures("on_the_cpu")
def test_the_command_records_a_run_that_can_be_read_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def describe(command: str, method: str) -> dict[str, Any]:
        about: dict[str, Any] = dict.fromkeys(records.RUN_KEYS, "made up")
        return about | {"schema": records.SCHEMA_VERSION, "run_id": "20270101-h200-"}

    from fa_kernels.integrations import fixed_cache, transformers

    monkeypatch.setattr(sweep, "describe_run", describe)
    monkeypatch.setattr(launch, "available", lambda: True)
    monkeypatch.setattr(fixed_cache, "register", lambda **options: None)  # on_the_cpu did
    monkeypatch.setattr(transformers, "register", lambda **options: None)
    both = [PROBLEM, replace(PROBLEM, seqlen_q=25)]
    monkeypatch.setattr(generation_run, "problems", lambda: both[:1])
    command = ["measure", "--generation", "--out", str(tmp_path)]
    assert cli.main(command) == 0
    run = records.load_run("20270101-h200-generation", tmp_path)
    assert run.kind == "generation" and {row.seqlen_q for row in run.rows} == {24}
    assert "decode_split_kv" in capsys.readouterr().out
    monkeypatch.setattr(generation_run, "problems", lambda: both)
    assert cli.main([*command, "--resume", run.run_id]) == 0
    rows = records.load_run(run.run_id, tmp_path).rows
    assert [row.seqlen_q for row in rows] == [24] * len(run.rows) + [25] * len(run.rows)


def test_gpt2_small_after_a_short_and_a_long_prompt() -> None:
    short, long = problems()
    assert {(p.batch, p.nheads, p.head_dim) for p in (short, long)} == {(16, 12, 64)}
    assert (short.seqlen_q, long.seqlen_q, long.seqlen_k) == (512, 4096, 4128)
    assert [new_tokens(long, way) for way in WAYS] == [4, 4, 32, 32]
    assert marks_of(32) == [1, 8, 16, 24, 32] and marks_of(4) == [1, 2, 3, 4]
    assert marks_of(1) == [1]


@pytest.mark.usefixtures("on_the_cpu")
def test_the_line_of_progress_tells_the_ways_apart() -> None:
    rows = list(measure_generation(PROBLEM, (EAGER, EAGER_CACHED), repeats=1))
    made_up = {"eager": 100.0, "eager_cached": 10.0}
    rows = [
        replace(row, median=made_up[row.variant] * (row.seqlen_k - 24))
        if row.metric == "latency_ms"
        else row
        for row in rows
    ]
    said = generation_run._summary(rows)
    assert "torch_eager eager prompt 100 ms, then 20 tokens/s" in said
    assert "torch_eager eager_cached prompt 10 ms, then 200 tokens/s" in said
