"""transformers' own multi-token prediction, `generate(use_mtp=True)`, on small models of DeepSeek-V3 with random weights.

It is no subject of the checker: `mtp_loop` asks for models that are tables and uniforms handed in. What it promises is shown here.
"""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.peers

NEW_TOKENS = 16
# Layers of multi-token prediction, size of the vocabulary, seed of the weights: of few tokens some drafts are right by chance.
MODELS = [(1, 2, 1), (1, 3, 5), (2, 2, 3), (2, 3, 3), (3, 2, 1), (3, 3, 0)]


def random_weights(module: Any, seed: int) -> Any:
    """In float64, from a seed; norms near 1, no bias of the router."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    for name, x in module.named_parameters():
        x.data = torch.randn(x.shape, generator=generator, dtype=torch.float64) / 2 + ("norm" in name)
    for name, x in module.named_buffers():
        if "correction" in name:
            x.zero_()
    return module.eval()


def small_model(layers: int, vocabulary: int, seed: int) -> tuple[Any, Any]:
    """A model and its layers of multi-token prediction, which share its embedding and head."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM
    from transformers.modeling_layers import MtpModel

    config = DeepseekV3Config(
        vocab_size=vocabulary, hidden_size=16, intermediate_size=16, moe_intermediate_size=8, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, n_shared_experts=1, n_routed_experts=4, kv_lora_rank=8, q_lora_rank=8, qk_rope_head_dim=4, v_head_dim=4,
        qk_nope_head_dim=4, n_group=2, topk_group=1, num_experts_per_tok=2, first_k_dense_replace=1, num_nextn_predict_layers=layers,
        bos_token_id=None, eos_token_id=None, pad_token_id=0, max_position_embeddings=64,
    )  # fmt: skip
    config._experts_implementation = "eager"                                    # the grouped product does not take float64
    model = random_weights(DeepseekV3ForCausalLM(config), seed)
    heads = MtpModel(model, layers)
    random_weights(heads.layers, 100 + seed)
    return model, heads.eval()


@pytest.fixture(params=MODELS, ids=str)
def generated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A text made without and with the layers, and what these were given and drafted in each pass. They stand in for a checkpoint."""
    import torch
    from transformers.modeling_layers import MtpModel

    model, heads = small_model(*request.param)
    passes, forward = [], MtpModel.forward

    def recorded(self: Any, *args: Any, **given: Any) -> Any:
        drafts = forward(self, *args, **given)
        passes.append((given["full_input_ids"], drafts[0]))
        return drafts

    monkeypatch.setattr(MtpModel, "from_pretrained", lambda *args, **given: heads)
    monkeypatch.setattr(MtpModel, "forward", recorded)
    prompt = torch.arange(4)[None] % request.param[1]
    options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "attention_mask": torch.ones_like(prompt)}
    plain, drafted = model.generate(prompt, **options), model.generate(prompt, **options, use_mtp=True)
    monkeypatch.setattr(MtpModel, "forward", forward)
    return {"model": model, "heads": heads, "plain": plain, "drafted": drafted, "passes": passes}


def test_greedy_text_is_the_same_with_and_without_drafts(generated: dict[str, Any]) -> None:
    assert generated["plain"].shape == (1, 4 + NEW_TOKENS)
    assert generated["drafted"].tolist() == generated["plain"].tolist()
    assert 1 < len(generated["passes"]) < NEW_TOKENS - 1                        # some drafts were right, and not all


def test_drafts_are_those_of_layers_that_have_cached_nothing(generated: dict[str, Any]) -> None:
    """Rows of drafts that were rejected are gone from the caches, and those of the text are there."""
    import torch
    from transformers.cache_utils import MtpCache

    model, heads = generated["model"], generated["heads"]
    for text, drafts in generated["passes"]:
        with torch.no_grad():
            hidden = model(text[:, :-1], output_hidden_states=True).hidden_states[-1]
            fresh, *_ = heads(
                input_ids=text[:, 1:], last_hidden_states=hidden, attention_mask=None, position_ids=torch.arange(1, text.shape[1])[None],
                mtp_cache=MtpCache(config=model.config.get_mtp_config()),
            )
        assert drafts.tolist() == fresh.tolist()


def test_transformers_mtp_labels() -> None:
    import torch
    from transformers.cache_utils import MtpCache

    model, heads = small_model(1, 3, 1)
    tokens, positions = torch.zeros((1, 2), dtype=torch.long), torch.arange(2)[None]
    hidden = torch.zeros((1, 2, 16), dtype=torch.float64)
    with pytest.raises(TypeError, match="NoneType"):
        heads(input_ids=tokens, last_hidden_states=hidden, attention_mask=None, position_ids=positions, labels=tokens,
              mtp_cache=MtpCache(config=model.config.get_mtp_config()))  # fmt: skip
