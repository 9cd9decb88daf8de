#include "train/trainer.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/process.h"
#include "base/run_events.h"
#include "base/text.h"
#include "base/work_scope.h"
#include "data/export_tokenizer.h"
#include "device/device.h"
#include "layers/cost.h"
#include "optim/schedule.h"
#include "train/check_layout.h"
#include "train/inputs.h"
#include "train/metrics/step_line.h"

namespace ingot::train {
namespace {

namespace fs = std::filesystem;
using mesh::Axis;
using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) { return std::chrono::duration<double, std::milli>(Clock::now() - start).count(); }

// A watch times operations, which a graph has none of.
TrainingSetup setup_of(const RunConfig& config, bool is_watched) {
  return {.model = config.model,
          .optimizer = config.optimizer,
          .parallel = config.parallel,
          .precision = config.train.precision,
          .device = device::device_named(config.train.device),
          .recompute = models::recompute_from_name(config.train.recompute),
          .offloads_activations = config.train.offload == "activations",
          .uses_graphs = config.train.gpu_graphs && !is_watched,
          .microbatch = config.train.microbatch_size,
          .routing_losses = routing_losses_of(config.train),
          .z_loss = config.train.z_loss,
          .mtp_loss = config.train.mtp_loss,
          .preferences = {config.train.dpo_beta, config.train.dpo_label_smoothing},
          .seed = static_cast<uint64_t>(config.train.seed),
          .is_reproducible = config.train.reproducible};
}

// 0 where it cannot be counted: that is no reason not to train.
double flops_per_token_of(const models::Model& model, int64_t seq) {
  try {
    return model.training_flops_per_token(seq);
  } catch (const std::exception& failure) {
    base::log_warning("the model's FLOPs could not be counted, and MFU is not shown: {}", failure.what());
    return 0;
  }
}

}  // namespace

void add(const Measured& stretch, Measured& run) {
  run.step_ms.resize(std::max(run.step_ms.size(), stretch.step_ms.size()));
  for (size_t i = 0; i < stretch.step_ms.size(); ++i)
    run.step_ms[i].insert(run.step_ms[i].end(), stretch.step_ms[i].begin(), stretch.step_ms[i].end());
  run.peak_memory_bytes = std::max(run.peak_memory_bytes, stretch.peak_memory_bytes);
}

Trainer::Trainer(RunConfig config, RunOptions options, const Forecast& forecast, mesh::Groups& groups)
    : config_(std::move(config)),
      options_(std::move(options)),
      forecast_(forecast),
      groups_(groups),
      spikes_(config_.resilience.spike_sigmas, config_.resilience.spike_window, config_.resilience.nonfinite_limit),
      best_(config_.train.best_metric, config_.train.patience) {
  check_layout(config_, groups_.mesh());
  phases_ = lay_out_phases_over_data(config_);
  measured_.step_ms.resize(phases_.size());
  config_toml_ = options_.described.empty() ? settings_of(config_).dump_toml() : options_.described;
  whole_ = models::create_model(config_.model);
  for (size_t i = 0; i < phases_.size(); ++i)
    flops_per_token_.push_back(config_.covers(i) ? flops_per_token_of(*whole_, phases_[i].data.seq_len) : 0);
  parallel_ = std::make_unique<ParallelModel>(setup_of(config_, options_.watch != nullptr), groups_);
  tokenizer_ = tokenizer_of(config_);
  run_id_ = checkpoint::on_first(team(), [&] { return run_id(options_.run_dir); });
  checkpoints_ = std::make_unique<RunCheckpoints>(
      config_.checkpoint, RunCheckpoints::Options{options_.run_dir, run_id_, options_.resume, config_toml_, options_.storage_of},
      *parallel_, groups_);
  if (auto restored = checkpoints_->restore()) {
    progress_ = restored->progress;
    began_at_ = progress_.step;
    resumed_data_ = std::move(restored->data_state);
    best_.restore(restored->best, "the checkpoint");
    if (skips_spikes()) spikes_.restore(restored->spikes, "the checkpoint");
  }
  if (config_.resilience.spike != "off")
    parallel_->step().ask_before_update([this](double loss, double grad_norm) {
      spike_ = spikes_.take(loss, grad_norm);
      return spike_.empty() || !skips_spikes();
    });
  enter_phase(phase_at(phases_, progress_.step));
  if (options_.first_sample >= 0) pass_over_to(options_.first_sample);
  prepare_run_dir();
  checkpoints_->prepare();
}

std::pair<int64_t, int64_t> Trainer::own_share(int64_t first, int64_t count) const {
  return data::share_of(first, count, groups_.mesh().position(Axis::data), groups_.mesh().size(Axis::data));
}

bool Trainer::must_stop(const resilience::StopSignal& stop) {
  auto asked = stop.received() != 0 ? Asked::by_signal : Asked::no;
  const auto now = Clock::now();
  if (is_main() && asked == Asked::no && now - looked_for_stop_file_ > std::chrono::seconds(1)) {
    looked_for_stop_file_ = now;
    std::error_code ignored;
    if (std::filesystem::exists(stop_file(), ignored)) asked = Asked::by_file;
  }
  asked_to_stop_ = static_cast<Asked>(largest_over_ranks(static_cast<int64_t>(asked)));
  return asked_to_stop_ != Asked::no;
}

int64_t Trainer::largest_over_ranks(int64_t value) {
  auto& all = groups_.world().everyone();
  if (all.size() == 1) return value;
  const auto tensor = at::full({1}, value, at::kLong);
  all.all_reduce(tensor, comm::Reduction::max);
  return tensor.item<int64_t>();
}

std::vector<double> Trainer::of_main(const std::vector<double>& values) {
  auto& all = groups_.world().everyone();
  if (all.size() == 1) return values;
  auto tensor = at::zeros({static_cast<int64_t>(values.size())}, at::kDouble);
  if (is_main()) std::copy(values.begin(), values.end(), tensor.data_ptr<double>());
  all.all_reduce(tensor, comm::Reduction::sum);
  return {tensor.data_ptr<double>(), tensor.data_ptr<double>() + tensor.numel()};
}

int64_t Trainer::sent_bytes() const {
  int64_t sent = 0;
  for (const auto& [axis, traffic] : groups_.world().counters().totals())
    if (!RunCheckpoints::is_background(axis)) sent += traffic.sent_bytes;
  return sent;
}

data::LoaderOptions Trainer::loader_options() const {
  return {config_.model.vocab_size, static_cast<int32_t>(std::max<int64_t>(0, config_.model.pad_id))};
}

// In the middle of a phase the data must be what they were and stand where the step says.
void Trainer::check_resumed_data(const Phase& phase) const {
  if (resumed_data_.empty() || progress_.step == phase.first_step) return;
  const auto state = data::LoaderState::from_json(resumed_data_);
  loader_->restore_changes(state);
  loader_->check_resumable(state);
  const int64_t steps = progress_.step - phase.first_step;
  if (state.samples != phase.samples_before(steps) + progress_.passed_over)
    throw base::DataError(
        "the checkpoint of step {} has gone through {} samples of this phase; {} steps of {} sequences would have taken {}. Resume with "
        "the "
        "batch size that it was made with, and change it at the border of a phase (train.phases).",
        progress_.step, state.samples, steps, phase.batch_size, phase.samples_before(steps) + progress_.passed_over);
}

void Trainer::enter_phase(const Phase& phase) {
  if (phase_ == &phase) return;
  steps_in_phase_ = 0;
  prefetcher_.reset();
  loader_ = std::make_unique<data::Loader>(phase.data, data::Split::train, loader_options());
  if (progress_.step == phase.first_step) progress_.passed_over = 0;
  check_resumed_data(phase);
  resumed_data_.clear();
  if (data::has_validation(phase.data) && config_.train.validation_every > 0)
    validation_ = std::make_unique<data::Loader>(phase.data, data::Split::validation, loader_options());
  prefetcher_ = std::make_unique<data::Prefetcher>(*loader_, config_.data.prefetch, phase.batch_size);
  parallel_->step().tell_sources_apart(loader_->sources() > 1 ? loader_->sources() : 0);
  if (phase.rope_base != config_.model.rope_base || phase_ != nullptr) model().set_rope_base(phase.rope_base);
  if (auto* graphs = parallel_->step().graphs()) graphs->forget();  // captured with the base before
  if (phases_.size() > 1 && is_main()) {
    base::log_info("phase '{}': steps {} to {}, context {}, {} sequences per step, RoPE base {}, peak learning rate {}", phase.name,
                   phase.first_step + 1, phase.end_step(), phase.data.seq_len, phase.batch_size, phase.rope_base, phase.peak_lr);
    for (size_t s = 0; s < phase.data.sources.size(); ++s)
      base::log_info("  {}: {} samples are unseen when the phase begins", phase.data.sources[s].path, loader_->unseen_samples(s));
  }
  if (phase.resets_optimizer && progress_.step == phase.first_step && progress_.step > 0) {
    parallel_->optimizer().forget_moments();
    if (is_main()) base::log_info("phase '{}' begins with moments of 0", phase.name);
  }
  phase_ = &phase;
  if (is_main() && sink_) say_epochs(/*planned=*/true);
}

void Trainer::follow_blend(const Phase& phase) {
  if (config_.data.blend_file.empty()) return;
  auto weights = loader_->weights();
  if (is_main()) {
    if (!blend_file_) blend_file_.emplace(config_.data.blend_file, phase.data.sources);
    if (const auto& wanted = blend_file_->at(progress_.step + 1); !wanted.empty()) weights = wanted;
  }
  if (largest_over_ranks(weights != loader_->weights() ? 1 : 0) == 0) return;
  weights = of_main(weights);
  prefetcher_.reset();
  loader_->change_weights(phase.samples_before(progress_.step - phase.first_step) + progress_.passed_over, weights);
  prefetcher_ = std::make_unique<data::Prefetcher>(*loader_, config_.data.prefetch, phase.batch_size);
  if (is_main()) record_blend(phase);
}

void Trainer::record_blend(const Phase& phase) {
  const auto& sources = phase.data.sources;
  const int64_t step = progress_.step + 1;
  const auto path = options_.run_dir / "blend.txt";
  data::Blend history;
  if (std::filesystem::exists(path)) {
    history = data::Blend::parse(base::read_file(path), path.string(), sources);
  } else {
    std::vector<double> weights;
    for (const auto& source : sources) weights.push_back(source.weight);
    history.change(0, weights);
  }
  history.change(step == 1 ? 0 : step, loader_->weights());
  base::write_file_atomically(path, history.text(sources));
  nlohmann::ordered_json weights;
  std::vector<std::string> words;
  for (size_t s = 0; s < sources.size(); ++s) {
    weights[sources[s].path] = loader_->weights()[s];
    words.push_back(fmt::format("{} {}", loader_->weights()[s], sources[s].path));
  }
  base::log_info("from step {} on the blend is {}", step, fmt::join(words, ", "));
  base::record_event(options_.run_dir, "blend", {{"step", step}, {"weights", weights}});
}

nlohmann::ordered_json Trainer::say_epochs(bool planned) const {
  constexpr size_t kMostInLog = 8;
  const int64_t steps = planned ? phase_->steps : progress_.step - phase_->first_step;
  nlohmann::ordered_json all = nlohmann::ordered_json::object();
  std::vector<std::string> words;
  for (const auto& drawn : loader_->drawn(phase_->samples_before(steps) + progress_.passed_over)) {
    const double epochs = static_cast<double>(drawn.samples) / static_cast<double>(drawn.rows);
    all[drawn.path] = epochs;
    if (words.size() < kMostInLog) words.push_back(fmt::format("{:.3g} of {}", epochs, drawn.path));
    else if (words.size() == kMostInLog) words.push_back("…");
  }
  base::log_info("epochs {}: {}", planned ? "of the whole phase" : "so far", fmt::join(words, ", "));
  return all;
}

// Of a run that goes on from an earlier step than it came to.
void Trainer::forget_later_blends() {
  const auto path = options_.run_dir / "blend.txt";
  if (!std::filesystem::exists(path)) return;
  const auto& sources = phase_->data.sources;
  try {
    auto history = data::Blend::parse(base::read_file(path), path.string(), sources);
    history.forget_from(progress_.step + 1);
    if (progress_.step > 0 && !history.at(progress_.step).empty()) return base::write_file_atomically(path, history.text(sources));
  } catch (const base::DataError& other) {  // sources that lie elsewhere now, for instance
    base::log_warning("{}; it is blend.txt.before now", other.what());
    std::filesystem::copy_file(path, path.string() + ".before", std::filesystem::copy_options::overwrite_existing);
  }
  std::filesystem::remove(path);
}

void Trainer::prepare_run_dir() {
  groups_.world().ledger().heartbeat().set_role(groups_.mesh().position(Axis::pipeline));
  groups_.world().ledger().heartbeat().set_run_directory(std::filesystem::absolute(options_.run_dir).string());
  if (!is_main()) return;
  base::make_directories(options_.run_dir);
  forget_later_blends();
  base::log_to_file((options_.run_dir / "log.txt").string());
  base::write_file_atomically(options_.run_dir / "config.toml", config_toml_);
  write_run_facts(options_.run_dir, facts());
  if (tokenizer_) {  // generation and export need it, wherever the run directory goes
    base::make_directories(options_.run_dir / "tokenizer");
    data::export_tokenizer(*tokenizer_, options_.run_dir / "tokenizer");
  }
  base::log_info("{} parameters ({} active per token without embeddings), {}, {} on {}",
                 base::format_count(static_cast<double>(whole_->parameters().weight_elements())),
                 base::format_count(static_cast<double>(whole_->active_elements())), config_.train.precision, config_.model.family,
                 facts().device);
  base::log_info("{}", mfu_convention(forecast_.gemm_flops / 1e12, "this machine's measured GEMM rate"));
  base::record_event(options_.run_dir, "start",
                     {{"step", progress_.step},
                      {"ranks", groups_.world().size()},
                      {"steps", total_steps(phases_)},
                      {"epochs", say_epochs(/*planned=*/true)}});
  sink_ = std::make_unique<MetricsSink>(options_.run_dir, config_.log, progress_.step, config_toml_, run_id_);
  record_checkpoints();
}

RunFacts Trainer::facts() const {
  RunFacts facts;
  facts.id = run_id_;
  facts.version = options_.version;
  facts.model = config_.model.family;
  facts.parameters = whole_->parameters().weight_elements();
  facts.active_parameters = whole_->active_elements();
  facts.device =
      model().device().is_cpu() ? fmt::format("cpu: {} threads of {}", at::get_num_threads(), base::cpu_name()) : model().device().str();
  facts.precision = config_.train.precision;
  facts.ranks = groups_.world().size();
  facts.peak_tflops = forecast_.gemm_flops / 1e12;
  facts.mfu_convention = layers::kMfuConvention;
  return facts;
}

int64_t Trainer::resumable_step(const RunConfig& config, const RunOptions& options) {
  if (options.resume == "never") return -1;
  const auto folder = options.resume != "auto" ? fs::path(options.resume) : checkpoints_folder(config.checkpoint, options.run_dir);
  if (const auto newest = checkpoint::latest(folder, options.storage_of(folder)))
    return checkpoint::step_of(newest->path.filename().string()).value_or(-1);
  return checkpoint::step_of(folder.filename().string()).value_or(-1);
}

bool Trainer::run(const resilience::StopSignal& stop) {
  const int64_t all = total_steps(phases_), steps = options_.stop_after > 0 ? std::min(all, options_.stop_after) : all;
  if (progress_.step >= all && is_main())
    base::log_info("all {} steps are done; a larger train.steps goes on, another --run-dir starts anew", all);
  bool stopped = false;
  auto& heartbeat = groups_.world().ledger().heartbeat();
  while (progress_.step < steps && !best_.has_lost_patience() && !(stopped = must_stop(stop))) {
    const Phase& phase = phase_at(phases_, progress_.step);
    enter_phase(phase);
    follow_blend(phase);
    StepRecord record = take_step(phase);
    if (goes_back_) {
      checkpoints_->wait();
      record_checkpoints();
      if (is_main()) checkpoints_->remove_later_than(goes_back_->to.step), sink_->end(MlflowEnd::killed);
      return false;
    }
    if (is_due(config_.resilience.known_answer_every)) check_products();
    if (validation_ && (is_due(config_.train.validation_every) || progress_.step == steps)) record.validation_loss = validate(phase);
    const int64_t evaluation_every = config_.train.evaluation_every;
    if (options_.evaluations && evaluation_every > 0 && (is_due(evaluation_every) || progress_.step == steps)) {
      heartbeat.set_step(0);  // its questions take as long as they take
      record.evaluations = options_.evaluations->run(*parallel_, groups_);
    }
    const auto judged = judge(record);
    if (is_main()) sink_->record(std::move(record));
    checkpoints_->after_step(progress_, judged, [this] { return data_state(); });
    record_checkpoints();
  }
  const bool is_early = progress_.step < all && best_.has_lost_patience();
  const bool is_by_file = asked_to_stop_ == Asked::by_file;
  if (stopped && is_main())
    base::log_info("stopped by {} after step {}",
                   is_by_file ? fmt::format("the file {}, which is removed,", stop_file().string()) : "a signal", progress_.step);
  else if (is_early && is_main()) base::log_info("stopped after step {} of {}: {} (train.patience)", progress_.step, all, best_.describe());
  else if (progress_.step < all && is_main()) base::log_info("stopped after step {} of {}, as --stop-after says", progress_.step, all);
  heartbeat.set_step(0);
  try {
    checkpoints_->finish(progress_, [this] { return data_state(); });
  } catch (...) {
    record_checkpoints();
    throw;
  }
  record_checkpoints();
  if (is_main())
    base::record_event(options_.run_dir, "end",
                       {{"step", progress_.step},
                        {"why", is_by_file             ? "stop file"
                                : stopped              ? "signal"
                                : is_early             ? "train.patience"
                                : progress_.step < all ? "--stop-after"
                                                       : "all steps"},
                        {"epochs", say_epochs(/*planned=*/false)}});
  if (is_main()) sink_->end(stopped ? MlflowEnd::killed : MlflowEnd::finished);
  std::error_code ignored;
  if (is_main() && is_by_file) std::filesystem::remove(stop_file(), ignored);
  return !stopped && !is_early;
}

void Trainer::record_checkpoints() {
  for (auto& record : checkpoints_->take_records()) sink_->record_checkpoint(std::move(record));
}

StepRecord Trainer::take_step(const Phase& phase) {
  const int64_t step = progress_.step, in_phase = step - phase.first_step;
  if (options_.watch) options_.watch->before_step();
  const auto start = Clock::now();
  groups_.world().ledger().set_step(step + 1);
  const int64_t sent_before = sent_bytes();
  const int64_t batch_size = phase.batch_at(in_phase);
  const auto [first, count] = own_share(phase.samples_before(in_phase) + progress_.passed_over, batch_size);
  const data::Batch batch = [&] {
    const base::WorkScope scope("data", base::WorkKind::data);
    const auto asked = Clock::now();
    auto batch = prefetcher_->get(first, count);
    groups_.world().ledger().heartbeat().add_data(milliseconds_since(asked) / 1e3);
    return batch;
  }();
  const double lr = optim::learning_rate(phase.optimizer, phase.peak_lr, in_phase, phase.steps);
  const int64_t check_every = config_.resilience.check_replicas_every;
  auto* const check = check_every > 0 && (step + 1) % check_every == 0 ? parallel_->replica_check() : nullptr;
  const StepResult result = parallel_->step().run(batch, lr, check);
  const double step_ms = milliseconds_since(start);
  const int64_t tokens = result.tokens;
  if (options_.watch) options_.watch->after_step();
  if (check) compare_replicas(*check, step + 1);
  smoothed_step_ms_ = smoothed_step_ms_ == 0 ? step_ms : 0.9 * smoothed_step_ms_ + 0.1 * step_ms;
  if (!result.reason.empty()) handle_skip(result, step + 1);
  else skipped_in_a_row_ = 0;
  if (!spike_.empty()) handle_spike(step + 1);
  ++progress_.step;
  progress_.tokens += tokens;

  const auto phase_number = static_cast<size_t>(&phase - phases_.data());
  StepRecord record;
  record.step = progress_.step;
  record.steps = total_steps(phases_);
  record.tokens = progress_.tokens;
  record.loss = result.loss;
  record.grad_norm = result.grad_norm;
  record.lr = lr;
  record.step_ms = step_ms;
  record.tokens_per_s = static_cast<double>(tokens) * 1e3 / step_ms;
  record.flops_per_token = flops_per_token_[phase_number];
  record.tflops = record.flops_per_token * record.tokens_per_s / 1e12 / groups_.world().size();
  record.mfu = forecast_.gemm_flops > 0 ? record.tflops * 1e12 / forecast_.gemm_flops : 0;
  record.memory_peak_bytes = largest_over_ranks(device::peak_memory_bytes(model().device()));
  record.comm_bytes = sent_bytes() - sent_before;
  const bool is_ramp = batch_size != phase.batch_size;  // predictions are of the whole batch
  record.predicted_step_ms = is_ramp ? 0 : Forecast::of_phase(forecast_.step_ms, phase_number);
  record.predicted_memory_bytes = forecast_.memory_bytes;
  record.calibrated_step_ms = is_ramp ? 0 : Forecast::of_phase(forecast_.calibrated_step_ms, phase_number);
  record.calibrated_memory_bytes = forecast_.calibrated_memory_bytes;
  record.eta_s = static_cast<double>(record.steps - record.step) * smoothed_step_ms_ / 1e3;
  record.skipped = result.skipped;
  if (!result.expert_tokens.empty()) {
    record.expert_load = expert_load_of(result.expert_tokens);
    record.expert_load->entropy = result.router_entropy;
    record.expert_load->dropped = result.dropped_of_layers;
  }
  for (size_t s = 0; s < result.sources.size(); ++s)
    if (const auto& source = result.sources[s]; source.targets > 0)
      add_source_loss(record, {phase.data.sources[s].path, source.loss, source.targets});
  record.dpo_accuracy = result.dpo_accuracy;
  record.dpo_margin = result.dpo_margin;
  record.balance_loss = result.balance_loss;
  record.router_z_loss = result.router_z_loss;
  record.mtp_loss = result.mtp_loss;
  record.attention_max = result.attention_max;
  record.draft_loss = result.draft_loss;
  record.dropped = result.dropped;
  if (!is_ramp) measure(record, phase_number);
  return record;
}

void Trainer::measure(const StepRecord& record, size_t phase) {
  constexpr size_t kMostSteps = 10'000;
  measured_.peak_memory_bytes = record.memory_peak_bytes;
  auto& times = measured_.step_ms[phase];
  if (++steps_in_phase_ > Measured::kWarmUpSteps && !record.skipped && times.size() < kMostSteps) times.push_back(record.step_ms);
}

void Trainer::handle_skip(const StepResult& result, int64_t step) {
  ++skipped_in_a_row_;
  const auto what =
      fmt::format("step {}: NaN or Inf, first in {} (loss {}, gradient norm {})", step, result.reason, result.loss, result.grad_norm);
  if (config_.resilience.nonfinite == "stop")
    throw base::NumericError(
        "{}; stopped as resilience.nonfinite = stop. The weights are those of the step before; a lower optimizer.lr or fp32 may help.",
        what);
  if (skipped_in_a_row_ >= config_.resilience.nonfinite_limit)
    throw base::NumericError("{}; {} steps in a row were skipped. Resume from an earlier checkpoint with a lower optimizer.lr.", what,
                             skipped_in_a_row_);
  if (!is_main()) return;
  base::log_warning("{}; the update is skipped", what);
  base::record_event(options_.run_dir, "skip", {{"step", step}, {"what", what}});
}

void Trainer::handle_spike(int64_t step) {
  const auto what = fmt::format("step {}: {}", step, std::exchange(spike_, ""));
  if (config_.resilience.spike == "stop")
    throw base::NumericError(
        "{}: a spike, and resilience.spike = stop. The newest checkpoint is from before; other data or a lower optimizer.lr get past it",
        what);
  if (config_.resilience.spike == "back") goes_back_ = place_before(step);
  if (!is_main()) return;
  base::log_warning("{}: a spike{}", what, skips_spikes() ? "; the update is skipped" : "");
  base::record_event(options_.run_dir, "spike", {{"step", step}, {"what", what}, {"skipped", skips_spikes()}});
  if (goes_back_) {
    base::log_warning("going back to the checkpoint of step {}; the data of the {} steps since is passed over", goes_back_->to.step,
                      step - goes_back_->to.step);
    base::record_event(options_.run_dir, "went_back", {{"step", step}, {"to", goes_back_->to.step}, {"what", what}});
  } else if (config_.resilience.spike == "back") {
    base::log_warning("there is no checkpoint of this phase that is {} steps old (resilience.spike_back): going on",
                      config_.resilience.spike_back);
  }
}

// The spike is where the damage shows; PaLM (arXiv 2204.02311, section 5.1) went back some 100 steps.
std::optional<GoBack> Trainer::place_before(int64_t spike) {
  const auto found = checkpoint::on_first(team(), [&] {
    const auto place = checkpoints_->newest_within(phase_->first_step, spike - config_.resilience.spike_back);
    return place ? place->path.string() : std::string();
  });
  if (found.empty()) return std::nullopt;
  const std::filesystem::path path = found;
  return GoBack{{checkpoint::step_of(path.filename().string()).value_or(0), path},
                phase_->samples_before(spike - phase_->first_step) + progress_.passed_over};
}

void Trainer::pass_over_to(int64_t first_sample) {
  progress_.passed_over = first_sample - phase_->samples_before(progress_.step - phase_->first_step);
}

// Whichever copy was saved since, it may be the wrong one.
void Trainer::compare_replicas(ReplicaCheck& check, int64_t step) {
  try {
    check.compare(step);
  } catch (const base::ReplicaError&) {
    checkpoints_->distrust_later_than(std::max(began_at_, check.agreed()));
    record_checkpoints();
    throw;
  }
}

// Of all errors this one alone says nothing of the run, and everything of the machine.
void Trainer::check_products() {
  const auto device = model().device();
  if (!known_answer_)
    known_answer_.emplace(device, layers::precision_named(config_.train.precision).dtype, kernels::KnownAnswer::usual_size(device));
  if (const auto error = known_answer_->find_error(); !error.empty())
    throw base::VerificationError("rank {} on {} computes wrongly, after step {}: {}. The weights since the last checkpoint may be wrong",
                                  groups_.world().rank(), base::host_name(), progress_.step, error);
}

std::optional<double> Trainer::validate(const Phase& phase) {
  const int64_t batches = config_.train.validation_batches, size = phase.batch_size;
  double sum = 0;
  int64_t targets = 0;
  for (int64_t i = 0; i < batches && i * size < validation_->samples(); ++i) {
    const int64_t count = std::min(size, validation_->samples() - i * size);
    groups_.world().ledger().heartbeat().beat();
    int64_t in_batch = 0;
    const auto [first, own] = own_share(i * size, count);
    const double loss = parallel_->step().evaluate(own > 0 ? validation_->batch(first, own) : data::Batch{}, in_batch);
    sum += loss * static_cast<double>(in_batch);
    targets += in_batch;
  }
  if (targets == 0) return std::nullopt;
  return sum / static_cast<double>(targets);
}

// Machines of several kinds may differ in a last bit: what rank 0 has decides.
RunCheckpoints::Judged Trainer::judge(const StepRecord& record) {
  RunCheckpoints::Judged judged{.score = best_.score_in(record), .best = {}};
  if (judged.score) {
    if (auto& all = groups_.world().everyone(); all.size() > 1) {
      const auto score = at::full({1}, *judged.score, at::kDouble);
      all.broadcast(score, 0);
      judged.score = score.item<double>();
    }
    judged.saves = best_.take(*judged.score, progress_.step) && best_.is_of_evaluations() && config_.checkpoint.keep_best > 0;
  }
  judged.best = best_.to_json();
  if (skips_spikes()) judged.spikes = spikes_.to_json();
  return judged;
}

std::string Trainer::data_state() const {
  return loader_->state(progress_.step, phase_->samples_before(progress_.step - phase_->first_step) + progress_.passed_over).to_json();
}

}  // namespace ingot::train
