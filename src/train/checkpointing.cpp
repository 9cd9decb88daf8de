#include "train/checkpointing.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "layers/dtype.h"

namespace ingot::train {
namespace {

using base::CheckpointError;

// Every tensor of a run by its global name.
std::map<std::string, at::Tensor> tensors_of(RunState state) {
  auto all = state.optimizer.state();
  for (const auto& p : state.model.parameters().all()) all[p->name] = state.optimizer.master_of(*p);
  return all;
}

// Reads `names` into fresh host tensors after checking all of them; nothing is overwritten when one does not fit.
std::map<std::string, at::Tensor> read_all(const checkpoint::Reader& reader, const std::map<std::string, at::Tensor>& wanted) {
  std::vector<std::string> problems;
  for (const auto& [name, tensor] : wanted) {
    if (!reader.contains(name)) {
      problems.push_back(name + " is missing");
      continue;
    }
    const auto& stored = reader.tensor(name);
    if (stored.shape != tensor.sizes().vec())
      problems.push_back(
          fmt::format("{} has shape {} there and {} here", name, tensor::to_string(stored.shape), tensor::to_string(tensor.sizes().vec())));
  }
  if (!problems.empty()) {
    const size_t shown = std::min<size_t>(10, problems.size());
    throw CheckpointError(
        "{} does not fit this configuration ({} problems):\n  {}{}\nUse the config it was made with (its config.toml) or another "
        "--run-dir.",
        reader.path().string(), problems.size(), fmt::join(problems.begin(), problems.begin() + static_cast<int64_t>(shown), "\n  "),
        shown < problems.size() ? "\n  …" : "");
  }
  std::map<std::string, at::Tensor> read;
  for (const auto& [name, tensor] : wanted) {
    const auto& stored = reader.tensor(name);
    auto host = at::empty(stored.shape, layers::to_torch(stored.dtype));
    reader.read(name, tensor::whole(stored.shape), static_cast<std::byte*>(host.data_ptr()));
    read[name] = host;
  }
  return read;
}

}  // namespace

std::string Progress::to_json() const { return nlohmann::json{{"step", step}, {"tokens", tokens}}.dump(); }

Progress Progress::from_json(const std::string& text, const std::string& origin) {
  const auto parsed = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  try {
    return {parsed.at("step").get<int64_t>(), parsed.at("tokens").get<int64_t>()};
  } catch (const nlohmann::json::exception&) {
    throw CheckpointError("{}: the record 'progress' is not that of a training run", origin);
  }
}

checkpoint::SaveReport save_run(const std::filesystem::path& folder, RunState state, const Progress& progress,
                                const std::string& config_toml, const std::string& data_state, const checkpoint::SaveOptions& options) {
  const at::NoGradGuard no_grad;
  std::vector<checkpoint::SaveItem> items;
  std::vector<at::Tensor> hold;  // host copies live until the save is done
  for (const auto& [name, tensor] : tensors_of(state)) {
    if (!std::isfinite(tensor.sum(at::kDouble).item<double>()) && !at::isfinite(tensor).all().item<bool>())
      throw base::NumericError("{} has NaN or Inf; the checkpoint of step {} is not written and the last good one stays", name,
                               progress.step);
    hold.push_back(tensor.detach().to(at::kCPU).contiguous());
    items.push_back(
        checkpoint::whole_item({name, layers::from_torch(hold.back().scalar_type()), hold.back().sizes().vec()}, hold.back().data_ptr()));
  }
  return checkpoint::save(folder, progress.step, items,
                          {{"progress", progress.to_json()},
                           {"config.toml", config_toml},
                           {"data", data_state},
                           {"optimizer", nlohmann::json{{"steps", state.optimizer.steps_done()}}.dump()}},
                          options);
}

Progress load_run(const checkpoint::Reader& reader, RunState state) {
  const at::NoGradGuard no_grad;
  const auto progress = Progress::from_json(reader.extra("progress"), reader.path().string());
  const auto optimizer = nlohmann::json::parse(reader.extra("optimizer"), nullptr, false);
  if (!optimizer.is_object() || !optimizer.contains("steps") || !optimizer["steps"].is_number_integer())
    throw CheckpointError("{}: the record 'optimizer' is not that of a training run", reader.path().string());
  auto tensors = tensors_of(state);
  auto read = read_all(reader, tensors);
  for (auto& [name, tensor] : tensors) tensor.copy_(read.at(name));
  state.optimizer.set_steps_done(optimizer["steps"].get<int64_t>());
  state.optimizer.publish_masters();
  return progress;
}

void load_weights(const checkpoint::Reader& reader, models::Model& model) {
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> wanted;
  for (const auto& p : model.parameters().all()) wanted[p->name] = p->value;
  auto read = read_all(reader, wanted);
  for (auto& [name, tensor] : wanted) tensor.copy_(read.at(name));
}

std::string config_of(const checkpoint::Reader& reader) { return reader.extra("config.toml"); }

}  // namespace ingot::train
