#include "train/config.h"

#include "base/error.h"
#include "base/files.h"
#include "data/loader.h"
#include "layers/dtype.h"
#include "train/variable_rows.h"

namespace ingot::train {

using base::at_least;
using base::NumberRange;
using base::SettingsTable;

namespace {

void declare_phase(SettingsTable& table, PhaseConfig& p) {
  table.add("name", p.name, "shown in the log");
  table.add("tokens", p.tokens, at_least(0),
            "length in tokens, rounded up to whole steps; each row counts as seq_len of them, whatever stands in it");
  table.add("steps", p.steps, at_least(0), "length in steps, instead of tokens");
  table.add("seq_len", p.seq_len, at_least(0), "context length; 0 = data.seq_len");
  table.add("batch_size", p.batch_size, at_least(0), "sequences per step; 0 = train.batch_size");
  table.add("rope_base", p.rope_base, NumberRange{0, 1e15}, "RoPE base of full layers; 0 = model.rope_base");
  table.add("lr", p.lr, NumberRange{0, 10}, "peak learning rate; 0 = optimizer.lr");
  table.add("final_lr_fraction", p.final_lr_fraction, NumberRange{-1, 1}, "-1 = optimizer.final_lr_fraction");
  table.add("warmup_steps", p.warmup_steps, at_least(-1), "-1 = optimizer.warmup_steps");
  table.add("schedule", p.schedule, {"", "constant", "linear", "cosine", "wsd"}, "empty = optimizer.schedule");
  table.add("sources", p.sources, "data mix as \"weight path\"; empty = data.sources");
  table.add("ramp_from", p.ramp_from, at_least(0), "sequences of its first step, growing to batch_size; 0 = all at once");
  table.add("ramp_increment", p.ramp_increment, at_least(0), "sequences by which they grow");
  table.add("ramp_steps", p.ramp_steps, at_least(0), "steps until batch_size");
  table.add("reset_optimizer", p.reset_optimizer, "moments begin at 0");
  table.add("set", p.set,
            "key=value of parallel.*, train.microbatch_size, recompute, offload, gpu_graphs, validation_every, validation_batches and "
            "evaluation_every, optimizer.offload, data.prefetch and checkpoint.every: another layout takes a checkpoint at the phase's "
            "first step");
  table.add("reset_dataloader", p.reset_dataloader,
            "true: all sources begin anew, in another order and without curricula; false: each goes on with what the phases before have "
            "not drawn from it");
}

}  // namespace

layers::RoutingLossSettings routing_losses_of(const TrainConfig& c) {
  return {.balance = c.balance_loss, .z = c.router_z_loss, .over = layers::balance_over_from_name(c.balance_over)};
}

SettingsTable settings_of(RunConfig& c) {
  SettingsTable table;
  models::declare_settings(table, c.model);
  data::declare_settings(table, c.data);
  mesh::declare_settings(table, c.parallel);
  optim::declare_settings(table, c.optimizer);
  auto& t = c.train;
  table.add("train.steps", t.steps, at_least(1), "optimizer steps, when there are no phases");
  table.add("train.batch_size", t.batch_size, at_least(1), "sequences per step, over all ranks");
  table.add("train.microbatch_size", t.microbatch_size, at_least(0), "sequences per forward pass of a rank; 0 = all of its own");
  table.add("train.precision", t.precision, layers::precisions(),
            "compute dtype, or how operands of bf16's GEMMs are quantized (docs/fp8.md); masters are fp32 or wider");
  table.add("train.recompute", t.recompute, {"none", "selective", "full"},
            "activations recomputed in backward: none, the FFN of each block, whole blocks");
  table.add("train.offload", t.offload, {"none", "activations"},
            "what waits in the host's memory: activations = the inputs of blocks that are recomputed; a GPU's");
  table.add("train.gpu_graphs", t.gpu_graphs, "a GPU is given forward and backward of a microbatch as one graph (docs/devices.md)");
  table.add("train.device", t.device, {"auto", "cpu", "cuda", "emulated"},
            "auto = a GPU if there is one; emulated = the host, taken for a GPU (for tests)");
  table.add(
      "train.gemm_backend", t.gemm_backend, {"auto", "default", "ingot", "blas", "onednn", "upcast", "cublas", "cublaslt", "tuned"},
      "library of matmuls; tuned: of each on a GPU the library's fastest algorithm, measured at the first one; auto = the one that ingot "
      "bench gemm --libraries found clearly faster (on a GPU bench all does, too), which a run keeps");
  table.add("train.balance_loss", t.balance_loss, NumberRange{0, 1e3},
            "coefficient of the auxiliary loss by which routers use their experts evenly; 0 = none");
  table.add("train.balance_over", t.balance_over, layers::balance_over_names(),
            "whose tokens that loss looks at together: of a sequence, of a replica's microbatch, or of the batch (all replicas, and the "
            "step's microbatches so far)");
  table.add("train.router_z_loss", t.router_z_loss, NumberRange{0, 1e3},
            "coefficient of the square of the log-sum-exp of a router's logits, which keeps them small; 0 = none");
  table.add("train.z_loss", t.z_loss, NumberRange{0, 1e3},
            "coefficient of the square of the log-sum-exp of the head's logits, which keeps them from drifting; 0 = none. The loss that is "
            "shown does not have it, nor the next");
  table.add("train.mtp_loss", t.mtp_loss, NumberRange{0, 1e3},
            "coefficient of the mean loss of the predictors of model.mtp_layers (DeepSeek-V3: 0.3, later 0.1)");
  table.add("train.dpo_beta", t.dpo_beta, NumberRange{0, 1e3},
            "direct preference optimisation of data.packing = \"pairs\": how dear it is to leave the reference; 0 = off, 0.1 is usual");
  table.add("train.dpo_label_smoothing", t.dpo_label_smoothing, NumberRange{0, 0.5}, "share of pairs that are taken to be labelled wrong");
  table.add("train.seed", t.seed, at_least(0), "of the initial weights");
  table.add("train.reproducible", t.reproducible,
            "losses and weights have the same bits for any number of data ranks; costs memory and time (docs/communication.md)");
  table.add("train.threads", t.threads, base::IntegerRange{0, 4096}, "CPU threads; 0 = all cores");
  table.add("train.validation_every", t.validation_every, at_least(0), "steps between validations; 0 = never");
  table.add("train.validation_batches", t.validation_batches, at_least(1), "batches per validation");
  table.add("train.evaluations", t.evaluations,
            "task files, as ingot eval --tasks takes them: what they say of the model becomes metrics of the run (docs/evaluation.md)");
  table.add("train.evaluation_every", t.evaluation_every, at_least(0), "steps between evaluations, besides the one at the end; 0 = never");
  table.add("train.evaluation_limit", t.evaluation_limit, at_least(0), "no more than so many questions of each task; 0 = all");
  table.add("train.best_metric", t.best_metric,
            "what train.patience waits for and checkpoint.keep_best keeps: validation_loss, or of train.evaluations a task's name, or "
            "name/metric");
  table.add("train.patience", t.patience, at_least(0),
            "the run ends when so many values of train.best_metric in a row were no better than the best before; 0 = never");
  table.add_list("train.phases", t.phases, declare_phase, "phases of the recipe, in order");
  checkpoint::declare_settings(table, c.checkpoint);
  table.add("resilience.nonfinite", c.resilience.nonfinite, {"skip", "stop"}, "NaN or Inf in loss or gradients: skip the update, or stop");
  table.add("resilience.nonfinite_limit", c.resilience.nonfinite_limit, at_least(1), "skipped steps in a row before the run stops");
  table.add("resilience.spike", c.resilience.spike, {"off", "warn", "skip", "back", "stop"},
            "a loss or gradient norm far above those before (docs/operations.md): say nothing, say so, skip the update, go back to a "
            "checkpoint and pass over the data since, or stop");
  table.add("resilience.spike_sigmas", c.resilience.spike_sigmas, NumberRange{1, 1e6},
            "standard deviations above the median that are a spike");
  table.add("resilience.spike_window", c.resilience.spike_window, base::IntegerRange{16, 65536}, "steps that a spike is held against");
  table.add("resilience.spike_back", c.resilience.spike_back, at_least(1),
            "steps that such a checkpoint is older than the spike, at least");
  table.add("resilience.known_answer_every", c.resilience.known_answer_every, at_least(0),
            "steps between matrix products whose result is known, on each rank: one that is wrong ends the run, and names the machine; 0 = "
            "never");
  table.add(
      "resilience.check_replicas_every", c.resilience.check_replicas_every, at_least(0),
      "steps between comparisons of the weights that ranks hold copies of; a difference ends the run, naming weight and ranks; 0 = never");
  table.add("resilience.comm_timeout_s", c.resilience.comm_timeout_s, NumberRange{0.1, 86400},
            "longest wait for other ranks in one operation before the run ends, naming who is missing");
  table.add("resilience.rendezvous_timeout_s", c.resilience.rendezvous_timeout_s, NumberRange{0.1, 86400},
            "longest wait for all ranks to come at the start");
  table.add("resilience.run_lock_wait_s", c.resilience.run_lock_wait_s, NumberRange{0, 86400},
            "longest wait at the start for a job that has the same run directory or folder of checkpoints and may be ending");
  declare_settings(table, c.log);
  return table;
}

// What a graph cannot have in it: other ranks, and streams of their own that go on from pass to pass.
static void check_graphs(const RunConfig& c) {
  if (!c.train.gpu_graphs) return;
  const auto& p = c.parallel;
  for (const auto& [name, size] : std::initializer_list<std::pair<const char*, int64_t>>{{"pipeline", p.pipeline},
                                                                                         {"context", p.context},
                                                                                         {"tensor", p.tensor},
                                                                                         {"expert", p.expert},
                                                                                         {"expert_tensor", p.expert_tensor},
                                                                                         {"tensor_sequence", p.tensor_sequence}})
    if (size > 1)
      throw base::ConfigError(
          "train.gpu_graphs = true goes with data parallelism, and parallel.{} is {}: its ranks communicate within a pass", name, size);
  if (p.zero > 1)
    throw base::ConfigError("train.gpu_graphs = true needs parallel.zero = 0 or 1: with {} ranks communicate within every pass", p.zero);
  if (c.model.rope_scaling == "longrope")
    throw base::ConfigError(
        "train.gpu_graphs = true does not go with model.rope_scaling = \"longrope\", whose factors are copied in every pass");
  if (c.train.offload != "none")
    throw base::ConfigError("train.gpu_graphs = true does not go with train.offload = \"{}\", whose copies go on from pass to pass",
                            c.train.offload);
}

static void check_reproducible(const RunConfig& c) {
  if (!c.train.reproducible) return;
  if (c.train.microbatch_size == 0)
    throw base::ConfigError(
        "train.reproducible = true needs a train.microbatch_size, which stays the same for any number of ranks; 1 would work");
  if (c.train.threads == 0)
    throw base::ConfigError(
        "train.reproducible = true needs train.threads: how many a rank has decides the last bits of its products; 1 would work");
  for (const auto& [name, is_on] : {std::pair{"parallel.expert", c.parallel.expert > 1},
                                    {"parallel.pipeline", c.parallel.pipeline > 1},
                                    {"train.gpu_graphs", c.train.gpu_graphs}})
    if (is_on) throw base::ConfigError("train.reproducible = true does not go with {}; set one of them back", name);
  if ((c.optimizer.name == "dion" || c.optimizer.name == "normuon") && c.parallel.zero > 0)
    throw base::ConfigError(
        "train.reproducible = true and optimizer.name = \"{}\", which sums parts of matrices: with parallel.zero = {} their cuts move with "
        "the "
        "number of ranks; parallel.zero = 0 would work",
        c.optimizer.name, c.parallel.zero);
  if (c.parallel.grad_reduce_dtype != "fp32")
    throw base::ConfigError("train.reproducible = true sends gradients in fp64, and parallel.grad_reduce_dtype is \"{}\"; leave it out",
                            c.parallel.grad_reduce_dtype);
  if (c.train.balance_loss > 0 && c.train.balance_over == "batch")
    throw base::ConfigError(
        "train.balance_over = \"batch\" looks at tokens of all ranks at once, which train.reproducible = true cannot have; \"microbatch\" "
        "and \"sequence\" would work");
}

static void check_parts_of_steps(const RunConfig& c) {
  if (c.model.bidirectional != (c.data.mask_rate > 0))
    throw base::ConfigError("model.bidirectional = {} and data.mask_rate = {}: an encoder learns hidden tokens, and nothing else does",
                            c.model.bidirectional, c.data.mask_rate);
  if (c.optimizer.qk_clip > 0)
    for (const auto& [name, is_on] : {std::pair{"parallel.context", c.parallel.context > 1},
                                      {"parallel.tensor_sequence", c.parallel.tensor_sequence > 1},
                                      {"model.lora_rank", c.model.lora_rank > 0},
                                      {"optimizer.offload", c.optimizer.offload}})
      if (is_on) throw base::ConfigError("optimizer.qk_clip = {} does not go with {}; set one of them back", c.optimizer.qk_clip, name);
  if (c.model.draft_block > 0 && (c.train.gpu_graphs || c.train.dpo_beta > 0))
    throw base::ConfigError("model.draft_block = {} goes with train.gpu_graphs = false and train.dpo_beta = 0", c.model.draft_block);
}

static void check_preferences(const RunConfig& c) {
  const bool is_on = c.train.dpo_beta > 0;
  if (is_on != (c.data.packing == "pairs"))
    throw base::ConfigError(
        "train.dpo_beta = {} and data.packing = \"{}\": pairs of answers are learned by a train.dpo_beta above 0, and nothing else is",
        c.train.dpo_beta, c.data.packing);
  if (!is_on) return;
  const auto refuse = [](const char* setting, bool is_used, const char* instead) {
    if (is_used) throw base::ConfigError("train.dpo_beta does not go with {}; set it to {}", setting, instead);
  };
  refuse("model.mtp_layers", c.model.mtp_layers > 0, "0");
  refuse("train.z_loss", c.train.z_loss > 0, "0");
  refuse("parallel.tensor_sequence", c.parallel.tensor_sequence > 1, "1");
}

static void check_ramp(const RunConfig& c, const PhaseConfig& phase) {
  if (phase.ramp_from == 0) return;
  const int64_t batch = phase.batch_size > 0 ? phase.batch_size : c.train.batch_size, grows = batch - phase.ramp_from;
  if (phase.ramp_increment < 1 || grows < phase.ramp_increment || grows % phase.ramp_increment != 0)
    throw base::ConfigError("phase '{}': ramp_from = {} does not reach {} sequences by ramp_increment = {}; one that divides {} would",
                            phase.name, phase.ramp_from, batch, phase.ramp_increment, std::max<int64_t>(grows, 1));
  if (phase.ramp_steps < grows / phase.ramp_increment)
    throw base::ConfigError("phase '{}': ramp_steps = {} are fewer than the {} sizes of its ramp", phase.name, phase.ramp_steps,
                            grows / phase.ramp_increment);
}

void check(const RunConfig& c) {
  check(c.log);
  if (c.model.mtp_layers > 0 && c.train.mtp_loss == 0)
    throw base::ConfigError("train.mtp_loss = 0: the predictors of model.mtp_layers = {} would learn nothing; set one of them",
                            c.model.mtp_layers);
  if (layers::precision_named(c.train.precision).quantization) {
    if (c.model.layers < 3)
      throw base::ConfigError(
          "train.precision = \"{}\" leaves the first and the last block in bf16, and model.layers is {}: there is no other",
          c.train.precision, c.model.layers);
    if (c.parallel.tensor_sequence > 1)
      throw base::ConfigError(
          "train.precision = \"{}\" does not go with parallel.tensor_sequence = {}, whose GEMMs are not rounded; parallel.tensor would "
          "work",
          c.train.precision, c.parallel.tensor_sequence);
  }
  if (c.train.offload == "activations" && c.train.recompute != "full")
    throw base::ConfigError(
        "train.offload = \"activations\" moves the inputs of blocks that run again, and train.recompute is \"{}\"; \"full\" would work",
        c.train.recompute);
  if (c.train.evaluation_every > 0 && c.train.evaluations.empty())
    throw base::ConfigError(
        "train.evaluation_every = {} and train.evaluations is empty; name task files there, such as configs/tasks/agreement.toml",
        c.train.evaluation_every);
  if (c.train.best_metric != "validation_loss" && c.train.evaluations.empty())
    throw base::ConfigError("train.best_metric = \"{}\" is an evaluation, and train.evaluations is empty; name its task file there",
                            c.train.best_metric);
  if (c.train.patience > 0 && c.train.best_metric == "validation_loss" && (c.train.validation_every == 0 || !data::has_validation(c.data)))
    throw base::ConfigError(
        "train.patience = {} waits for validation_loss, and the run does not validate: set train.validation_every and "
        "data.validation_fraction (or data.validation), or name an evaluation in train.best_metric",
        c.train.patience);
  if (!c.data.blend_file.empty() && c.train.phases.size() > 1)
    throw base::ConfigError("data.blend_file = \"{}\" goes with one phase, and train.phases has {}: write their blends into the file",
                            c.data.blend_file, c.train.phases.size());
  check_graphs(c);
  check_reproducible(c);
  check_preferences(c);
  check_parts_of_steps(c);
  check_variable_rows(c);
  const auto check_batch = [&](int64_t batch, const std::string& where) {
    const int64_t micro = c.train.microbatch_size;
    if (micro > 0 && batch % micro != 0)
      throw base::ConfigError("{} = {} is not a multiple of train.microbatch_size = {}; {} would work", where, batch, micro,
                              (batch / micro + 1) * micro);
  };
  check_batch(c.train.batch_size, "train.batch_size");
  for (size_t i = 0; i < c.train.phases.size(); ++i) {
    const auto& phase = c.train.phases[i];
    if ((phase.tokens > 0) == (phase.steps > 0))
      throw base::ConfigError("train.phases '{}' needs either tokens or steps (it has tokens = {}, steps = {})", phase.name, phase.tokens,
                              phase.steps);
    const bool is_of_another = !c.covers(i) || (c.end_phase == SIZE_MAX && !phase.set.empty());
    if (phase.batch_size > 0 && !is_of_another) check_batch(phase.batch_size, "batch_size of phase '" + phase.name + "'");
    check_ramp(c, phase);
  }
}

RunConfig read_config(const std::string& path, const std::vector<std::string>& set) {
  RunConfig config;
  auto table = settings_of(config);
  table.load_toml(base::read_file(path, int64_t{16} << 20), path);
  for (const auto& setting : set) {
    const size_t equals = setting.find('=');
    if (equals == std::string::npos) throw base::UsageError("--set {}: write key=value, for instance --set train.steps=200", setting);
    table.set(setting.substr(0, equals), setting.substr(equals + 1), "--set");
  }
  return config;
}

}  // namespace ingot::train
