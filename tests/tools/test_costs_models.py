"""`oracles costs memory | kv | roofline | serve | scaling | models`: screen, JSON and plots of one arithmetic; nothing left unsaid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

COMMANDS = {
    "memory": ("--devices", "8", "--zero", "3"), "kv": ("--context", "4096"), "roofline": ("--batch", "1", "--batch", "8"),
    "serve": ("--batch", "1", "--batch", "8"), "scaling": ("--tokens", "15e12"),
}  # fmt: skip
LEFT_OUT = ("memory", "kv", "roofline", "serve", "scaling")
OWN = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
       "intermediate_size": 96, "vocab_size": 100}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_says_the_model_its_source_and_what_is_left_out(oracles: Any, command: str) -> None:
    ended = oracles("costs", command, "--model", "llama-3-8b", *COMMANDS[command])
    said = " ".join(ended.out.split())
    assert ended.code == 0, ended.err
    assert "llama-3-8b: 8,030,261,248 parameters" in said
    assert "https://huggingface.co/meta-llama/Meta-Llama-3-8B/blob/main/config.json" in said
    assert "left out" in said.lower()
    assert "fits" not in said


@pytest.mark.parametrize("command", COMMANDS)
def test_json_says_it_too(oracles: Any, command: str) -> None:
    data = oracles("costs", command, "--model", "llama-3-8b", *COMMANDS[command], "--json").data
    assert (data["model"], data["parameters"]) == ("llama-3-8b", 8_030_261_248)
    assert data["left_out"]


def test_memory_of_a_stage_adds_up(oracles: Any) -> None:
    data = oracles("costs", "memory", "--model", "llama-3-8b", "--devices", "8", "--zero", "3", "--json").data
    part = -(-8_030_261_248 // 8)
    assert data["bytes"]["weights"] == data["bytes"]["gradients"] == 2 * part
    assert data["bytes"]["masters"] == 4 * part
    assert data["total_bytes"] == sum(data["bytes"].values()) == 16 * part + 32 * 34 * 4096 * 4096


def test_more_than_a_device_has_is_said(oracles: Any) -> None:
    said = " ".join(oracles("costs", "memory", "--model", "llama-3-70b").out.split())
    assert "GB more than one h100 has." in said


def test_adapters_leave_the_rest_frozen(oracles: Any) -> None:
    parts = oracles("costs", "memory", "--model", "llama-2-7b", "--lora-rank", "8", "--json").data["bytes"]
    assert (parts["frozen weights"], parts["adapter masters"]) == (2 * 6_738_415_616, 4 * 4_194_304)


def test_the_cache_of_llama_3_8b_is_the_published_one(oracles: Any) -> None:
    data = oracles("costs", "kv", "--model", "llama-3-8b", "--context", "4096", "--context", "131072", "--json").data
    assert [row["kv_bytes"] for row in data["contexts"]] == [2**29, 2**34]
    room = 80 * 10**9 - 2 * 8_030_261_248
    assert [row["sequences"] for row in data["contexts"]] == [room // 2**29, room // 2**34]


def test_weights_without_room_leave_no_sequence(oracles: Any) -> None:
    ended = oracles("costs", "kv", "--model", "llama-3-70b")
    assert "That is more than there is: no sequence finds room." in " ".join(ended.out.split())


def test_an_overload_is_said(oracles: Any) -> None:
    ended = oracles("costs", "serve", "--model", "llama-3-70b", "--devices", "2", "--prompt", "8000", "--rate", "5")
    assert "The load is more than these devices can do" in " ".join(ended.out.split())
    assert oracles("costs", "serve", "--model", "llama-3-70b", "--devices", "2", "--prompt", "8000", "--rate", "5", "--json").data["load"][
        "ttlt"] is None  # fmt: skip


def test_serving_without_room_for_weights_is_bad_usage(oracles: Any) -> None:
    ended = oracles("costs", "serve", "--model", "llama-3-70b")
    assert ended.code == 2
    assert "devices: got 1 x h100 with 80.00 GB; want room for weights of 141.11 GB" in " ".join(ended.err.split())


def test_speculation_is_faster_by_its_formula(oracles: Any) -> None:
    drafting = ("--acceptance", "0.5", "--drafts", "2", "--draft-cost", "0.375")
    data = oracles("costs", "serve", "--model", "llama-3-8b", *drafting, "--json").data
    assert data["speculative_speed_up"] == 1.0


def test_scaling_of_an_8b_model_at_15t_tokens(oracles: Any) -> None:
    run = ("--model", "llama-3-8b", "--tokens", "15e12", "--stages", "4", "--microbatches", "8")
    data = oracles("costs", "scaling", *run, "--json").data
    assert (data["words"], data["bubble"]) == (11.25e12, 3 / 11)
    assert f"{data['tokens_per_parameter'] / 20:.0f}" == "93"                   # of 8.03e9; 94 of a round 8e9


@pytest.mark.parametrize(("model", "read", "rows", "words"), [
    ("llama-3-8b", 8_030_261_248 - 128_256 * 4096, 4096, "15.01 GB of weights; of a table that is looked up, one row for each sequence."),
    ("llama-3.2-1b", 1_235_814_400, 0, "2.47 GB of weights: all, the embedding being the head too."),
    ("gpt2", 124_439_808 - 1024 * 768, 768, "0.25 GB of weights; of a table that is looked up, one row for each sequence."),
])  # fmt: skip
def test_of_a_table_that_is_looked_up_a_step_reads_rows(oracles: Any, model: str, read: int, rows: int, words: str) -> None:
    """All of an embedding that is not the head too was charged to each step."""
    asked = ("--model", model, "--batch", "1", "--batch", "8")
    for command in ("roofline", "serve"):
        assert words in " ".join(oracles("costs", command, *asked).out.split())
    data = oracles("costs", "roofline", *asked, "--context", "100", "--json").data
    cache = 100 * int(oracles("costs", "kv", "--model", model, "--context", "1", "--json").data["contexts"][0]["kv_bytes"])
    assert data["weight_bytes_read"] == 2 * read
    for step in data["steps"]:
        assert step["seconds"] == (2 * read + step["batch"] * (cache + 2 * rows)) / 3.35e12
    load = oracles("costs", "serve", "--model", model, "--rate", "0", "--prompt", "100", "--output", "1", "--json").data["load"]
    assert load["tpot"] == (2 * read + cache + 2 * rows) / 3.35e12


@pytest.mark.parametrize("command", ["kv", "roofline", "serve"])
def test_a_plot_is_written_whole(oracles: Any, tmp_path: Path, command: str) -> None:
    ended = oracles("costs", command, "--model", "llama-3-8b", *COMMANDS[command], "--plot", "plots/out.png")
    assert ended.code == 0, ended.err
    assert (tmp_path / "plots" / "out.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert "plot: plots/out.png" in ended.out


def test_a_config_of_ones_own(oracles: Any, tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text(json.dumps(OWN))
    data = oracles("costs", "kv", "--config", "own.json", "--context", "10", "--json").data
    assert (data["model"], data["source"]) == ("own", "own.json")
    assert data["contexts"][0]["kv_bytes"] == 2 * 2 * 2 * 16 * 2 * 10


def test_an_unknown_family_is_said_to_be_taken_for_llama(oracles: Any, tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text(json.dumps({**OWN, "model_type": "other"}))
    said = " ".join(oracles("costs", "kv", "--config", "own.json").out.split())
    assert "model_type 'other' is not known: counted as a Llama layer." in said


@pytest.mark.parametrize(("arguments", "words"), [
    (("kv",), "model, config: got neither; want --model NAME or --config FILE"),
    (("kv", "--model", "llama-3-8b", "--config", "own.json"), "model, config: got both; want one"),
    (("kv", "--model", "llama-9"), "model: got 'llama-9'; want one of gpt2"),
    (("kv", "--model", "llama-3-8b", "--device", "abacus"), "device: got 'abacus'; want one of v100"),
    (("kv", "--config", "nowhere.json"), "nowhere.json"), (("kv", "--config", "list.json"), "holds no JSON object"),
    (("kv", "--config", "broken.json"), "config: got broken.json, which cannot be read as JSON"),
    (("kv", "--config", "short.json"), "has no vocab_size or no intermediate_size"),
    (("memory", "--model", "llama-3-8b", "--checkpointing", "some"), "checkpointing: got 'some'; want none, selective or full"),
    (("memory", "--model", "deepseek-v3", "--lora-rank", "4"), "config: got latent attention; want grouped attention"),
])  # fmt: skip
def test_bad_usage_is_said_by_name(oracles: Any, tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "broken.json").write_text('{"hidden_size": ')
    (tmp_path / "short.json").write_text(json.dumps({name: OWN[name] for name in OWN if name != "vocab_size"}))
    ended = oracles("costs", *arguments)
    assert ended.code == 2
    assert words in " ".join(ended.err.split())


def test_models_name_their_sources(oracles: Any) -> None:
    data = oracles("costs", "models", "--json").data
    assert len(data["models"]) >= 12
    assert all(row["source"].startswith("https://") for row in data["models"])
    assert "deepseek-v3" in oracles("costs", "models").out
