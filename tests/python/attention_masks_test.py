"""Encoders and drafts against transformers' models under masks of their own: logits, losses and every gradient. Runs with the Python of .deps/venv."""
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "end_to_end"))
import torch
from harness import Workspace, ingot
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

COMMON = dict(hidden_size=40, intermediate_size=56, num_attention_heads=4, num_key_value_heads=2, vocab_size=83, max_position_embeddings=256,
              pad_token_id=0, bos_token_id=2, eos_token_id=1, num_hidden_layers=2)
MASK_ID, SEQ = 5, 31


def model_of(settings):
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**(COMMON | settings)), attn_implementation="eager").float().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * (0.15 if p.dim() > 1 else 0.3))
    return model


def additive(visible):
    return torch.zeros(visible.shape).masked_fill(~visible, float("-inf"))[None, None]


def record_encoder(model, ids):
    """The loss is the next token's, which an encoder sees: only its numbers count here."""
    out = model(ids, attention_mask=additive(torch.ones(SEQ, SEQ, dtype=torch.bool)), use_cache=False)
    loss = torch.nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    return {"logits": out.logits.detach(), "loss": loss.detach().reshape(1)}


def record_drafts(model, ids, block):
    """TiDAR (arXiv 2511.08923): tokens, and behind them as many masks; the masks of a block see the tokens before it and one another."""
    at = torch.arange(SEQ)
    tokens = at[:, None] >= at[None, :]
    before = at[None, :] < (at // block * block)[:, None]
    within = (at // block)[:, None] == (at // block)[None, :]
    visible = torch.cat([torch.cat([tokens, torch.zeros_like(tokens)], 1), torch.cat([before, within], 1)], 0)
    both = torch.cat([ids, torch.full_like(ids, MASK_ID)], 1)
    logits = model(both, attention_mask=additive(visible), position_ids=torch.cat([at, at])[None], use_cache=False).logits
    count = ids.shape[0] * (SEQ - 1)
    next_token = torch.nn.functional.cross_entropy(logits[:, :SEQ - 1].flatten(0, 1), ids[:, 1:].flatten(), reduction="sum") / count
    drafted = torch.nn.functional.cross_entropy(logits[:, SEQ + 1:].flatten(0, 1), ids[:, 1:].flatten(), reduction="sum") / count
    loss = (next_token + drafted) / 2
    loss.backward()
    with torch.no_grad():
        plain = model(ids, use_cache=False).logits
    return {"logits": plain, "loss": loss.detach().reshape(1), "draft_loss": drafted.detach().reshape(1)}


DEEPSEEK = dict(model_type="deepseek_v3", num_key_value_heads=4, first_k_dense_replace=2, n_routed_experts=4, n_group=1, topk_group=1, num_experts_per_tok=2,
                moe_intermediate_size=20, n_shared_experts=1, kv_lora_rank=14, q_lora_rank=None, qk_nope_head_dim=10, qk_rope_head_dim=8, v_head_dim=12)
CASES = {
    "encoder, llama": (dict(model_type="llama"), record_encoder, ["model.bidirectional=true"]),
    "encoder, qwen3 tied": (dict(model_type="qwen3", head_dim=24, tie_word_embeddings=True), record_encoder, ["model.bidirectional=true"]),
    "encoder, latents": (DEEPSEEK, record_encoder, ["model.bidirectional=true"]),
    "drafts of 4, llama": (dict(model_type="llama", tie_word_embeddings=True), lambda m, ids: record_drafts(m, ids, 4), ["model.draft_block=4", f"model.draft_mask_id={MASK_ID}"]),
    "drafts of 16, qwen3": (dict(model_type="qwen3", head_dim=12), lambda m, ids: record_drafts(m, ids, 16), ["model.draft_block=16", f"model.draft_mask_id={MASK_ID}"]),
    "drafts of 7, latents": (DEEPSEEK, lambda m, ids: record_drafts(m, ids, 7), ["model.draft_block=7", f"model.draft_mask_id={MASK_ID}"]),
}


def main():
    torch.set_num_threads(2)
    with Workspace() as w:
        for number, (name, (settings, record, changes)) in enumerate(CASES.items()):
            torch.manual_seed(number)
            folder, file = w.path / f"{number}", w.path / f"{number}.safetensors"
            model = model_of(settings)
            model.save_pretrained(folder)
            ids = torch.randint(6, COMMON["vocab_size"], (2, SEQ))
            tensors = record(model, ids) | {"input_ids": ids}
            stored = {of: p.grad for of, p in model.named_parameters() if p.grad is not None and ".experts." not in of}
            tensors |= {"grad." + of: grad for of, grad in stored.items()}
            save_file({of: t.contiguous() for of, t in tensors.items()}, str(file), metadata={"fixture": json.dumps({"family": settings["model_type"]})})
            report = json.loads(ingot("verify", "model", folder, "--fixture", file, *(word for c in changes for word in ("--set", c)), "--json")[0])
            assert report["pass"] and report["compared"] == len(tensors) - 1, (name, report)
            print(f"ok {name}: {report['compared']} tensors")


main()
