"""LoRA against peft: logits, loss and the gradients of every adapter; merged folders and adapters go there and back. Runs with the Python of
.deps/venv."""
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "end_to_end"))
import torch
from harness import Workspace, expect_error, ingot, metrics
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

COMMON = dict(hidden_size=40, intermediate_size=56, num_attention_heads=4, num_key_value_heads=2, vocab_size=83, max_position_embeddings=256,
              pad_token_id=0, bos_token_id=2, eos_token_id=1)
CASES = {
    "llama, two targets": (dict(model_type="llama", num_hidden_layers=2, tie_word_embeddings=True), dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])),
    "llama, all linear, by the root of the rank": (
        dict(model_type="llama", num_hidden_layers=2, attention_bias=True), dict(r=9, lora_alpha=4, use_rslora=True, target_modules="all-linear")),
    "gemma3": (dict(model_type="gemma3_text", num_hidden_layers=2, head_dim=12, query_pre_attn_scalar=12, sliding_window=5,
                    layer_types=["sliding_attention", "full_attention"]), dict(r=3, lora_alpha=6, target_modules=["o_proj", "gate_proj", "down_proj"])),
    "qwen3_moe, attention": (dict(model_type="qwen3_moe", num_hidden_layers=2, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=20, head_dim=12),
                             dict(r=2, lora_alpha=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])),
    "deepseek_v3, a latent": (
        dict(model_type="deepseek_v3", num_hidden_layers=2, num_key_value_heads=4, first_k_dense_replace=1, n_routed_experts=4, n_group=1, topk_group=1,
             num_experts_per_tok=2, moe_intermediate_size=20, n_shared_experts=1, kv_lora_rank=14, q_lora_rank=18, qk_nope_head_dim=10, qk_rope_head_dim=8,
             v_head_dim=12), dict(r=5, lora_alpha=5, target_modules=["q_a_proj", "o_proj"])),
}


def record(model_settings, lora, folder):
    """A model with adapters, in one folder; what it makes of random ids, and the model with its adapters."""
    base = AutoModelForCausalLM.from_config(AutoConfig.for_model(**(COMMON | model_settings)), attn_implementation="eager").float().eval()
    with torch.no_grad():
        for p in base.parameters():
            p.add_(torch.randn_like(p) * (0.15 if p.dim() > 1 else 0.3))
    base.save_pretrained(folder)
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **lora)).eval()
    with torch.no_grad():
        for of, p in model.named_parameters():
            if "lora_B" in of:
                p.copy_(torch.randn_like(p) * 0.2)
    model.save_pretrained(folder)
    ids = torch.randint(3, COMMON["vocab_size"], (2, 31))
    out = model(ids, labels=ids, use_cache=False)
    out.loss.backward()
    gradients = {"grad." + of.replace(".default", ""): p.grad for of, p in model.named_parameters() if p.grad is not None}
    assert gradients and all(".lora_" in of for of in gradients)
    return {"input_ids": ids, "logits": out.logits.detach(), "loss": out.loss.detach().reshape(1)} | gradients, model


def check_round_trip(w, folder, ids, model):
    run, whole, alone = w.path / "run", w.path / "whole", w.path / "alone"
    ingot("checkpoint", "import-hf", folder, "-o", run)
    ingot("checkpoint", "export-hf", run, "-o", whole, "--dtype", "fp32")
    ingot("checkpoint", "export-hf", run, "-o", alone, "--dtype", "fp32", "--adapters", "--base", folder)
    expected = model(ids).logits
    merged = AutoModelForCausalLM.from_pretrained(whole, attn_implementation="eager")(ids).logits
    assert (merged - expected).abs().max() < 2e-5 * expected.abs().max(), (merged - expected).abs().max()
    before, after = load_file(folder / "adapter_model.safetensors"), load_file(alone / "adapter_model.safetensors")
    assert before.keys() == after.keys() and all(torch.equal(before[of], after[of]) for of in before)
    base = AutoModelForCausalLM.from_config(model.get_base_model().config, attn_implementation="eager")
    base.load_state_dict({of: x for of, x in load_file(folder / "model.safetensors").items()}, strict=False)
    again = PeftModel.from_pretrained(base, alone).eval()(ids).logits
    assert (again - expected).abs().max() < 1e-5 * expected.abs().max()


def check_training(w):
    """Adapters learn, the model does not: of what came from a folder without adapters every matrix has moved by their rank, and nothing else has."""
    folder, run, whole = w.path / "base", w.path / "tuned", w.path / "tuned_whole"
    AutoModelForCausalLM.from_config(AutoConfig.for_model(
        "llama", hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_hidden_layers=2, vocab_size=384,
        tie_word_embeddings=True, rms_norm_eps=1e-5)).save_pretrained(folder)
    ingot("checkpoint", "import-hf", folder, "-o", run)
    ingot("train", w.config("tuned", family="llama", **{"model.lora_rank": 4, "optimizer.lr": 0.02}), "--run-dir", run, "--no-forecast")
    found = metrics(run)
    assert len(found) == 12 and found[-1]["loss"] < found[0]["loss"], [m["loss"] for m in found]
    ingot("checkpoint", "export-hf", run, "-o", whole, "--dtype", "fp32")
    before, after = load_file(folder / "model.safetensors"), load_file(whole / "model.safetensors")
    changed = {of for of in after if not torch.equal(before[of], after[of])}
    assert changed == {of for of in after if of.endswith("_proj.weight")}, changed
    for of in changed:
        assert torch.linalg.matrix_rank((after[of] - before[of]).double(), rtol=1e-3) <= 4, of
    ingot("checkpoint", "export-hf", run, "-o", w.path / "tuned_alone", "--adapters")
    assert json.loads((w.path / "tuned_alone" / "adapter_config.json").read_text())["r"] == 4


def main():
    torch.set_num_threads(2)
    with Workspace() as w:
        for number, (name, (settings, lora)) in enumerate(CASES.items()):
            torch.manual_seed(number)
            folder, file = w.path / f"{number}", w.path / f"{number}.safetensors"
            tensors, model = record(settings, lora, folder)
            save_file({of: t.contiguous() for of, t in tensors.items()}, str(file), metadata={"fixture": json.dumps({"family": settings["model_type"]})})
            report = json.loads(ingot("verify", "model", folder, "--fixture", file, "--json")[0])
            assert report["pass"] and report["compared"] == len(tensors) - 1, (name, report)
            if number == 0:
                check_round_trip(w, folder, tensors["input_ids"], model)
            print(f"ok {name}: {report['compared']} tensors")
        config = json.loads((w.path / "0" / "adapter_config.json").read_text())
        for change, word in (({"use_dora": True}, "use_dora"), ({"r": 0}, "r = 0"), ({"target_modules": ["nothing"]}, "nothing"), ({"rank_pattern": {"q": 2}}, "rank_pattern")):
            (w.path / "0" / "adapter_config.json").write_text(json.dumps(config | change))
            expect_error("checkpoint", "import-hf", w.path / "0", "-o", w.path / "refused", status=2 if word == "nothing" else 1, words=[word])
        check_training(w)
        print("ok training")


main()
