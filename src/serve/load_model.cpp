#include "serve/load_model.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "checkpoint/format/metadata.h"
#include "checkpoint/load/reader.h"
#include "checkpoint/load/tensor_source.h"
#include "checkpoint/storage/folder.h"
#include "layers/dtype.h"
#include "models/hugging_face.h"
#include "serve/archive.h"
#include "train/checkpointing.h"
#include "train/config.h"
#include "train/phases.h"

namespace ingot::serve {
namespace {

namespace fs = std::filesystem;

std::unique_ptr<data::Tokenizer> tokenizer_in(const fs::path& folder) {
  for (const char* name : {"tokenizer.json", "tokenizer.model", "tokenizer.tiktoken"}) {
    if (fs::exists(folder / name)) return data::load_tokenizer(folder);
  }
  return nullptr;
}

LoadedModel from_checkpoint(const fs::path& path, at::ScalarType dtype, at::Device device, const parallel::Layout& layout) {
  const checkpoint::Reader reader(path);
  train::RunConfig config;
  train::settings_of(config).load_toml(train::config_of(reader), (path / "config.toml").string());
  LoadedModel loaded{models::create_model(config.model, layout), nullptr, {}};
  loaded.model->allocate(dtype, device);
  train::load_weights(reader, *loaded.model);
  const auto phases = train::lay_out_phases(config);
  const auto& phase = train::phase_at(phases, std::max<int64_t>(0, reader.step() - 1));
  if (phase.rope_base != config.model.rope_base) loaded.model->set_rope_base(phase.rope_base);
  // <run>/checkpoints/step_…: the run keeps a copy of its tokenizer.
  loaded.tokenizer = tokenizer_in(fs::absolute(path).lexically_normal().parent_path().parent_path() / "tokenizer");
  if (!loaded.tokenizer && !config.data.tokenizer.empty() && fs::exists(config.data.tokenizer))
    loaded.tokenizer = data::load_tokenizer(config.data.tokenizer);
  return loaded;
}

}  // namespace

parallel::Layout layout_over(comm::Group& ranks, const std::string& axis) {
  const int rank = ranks.rank(), size = ranks.size();
  parallel::Layout layout;
  if (axis == "experts") {
    layout.experts = {.rank = rank, .size = size, .group = &ranks};
  } else if (axis == "tensor") {
    layout.tensor = {.rank = rank, .size = size, .group = &ranks};
  } else {
    layout.tensor_sequence = {.rank = rank, .size = size, .group = &ranks};
    layout.sequence = {{.rank = rank, .size = size}, &ranks, &parallel::kAllGather};
  }
  return layout;
}

std::optional<at::ScalarType> dtype_named(const std::string& name) {
  return name.empty() ? std::nullopt : std::optional(layers::precision_named(name).dtype);
}

LoadedModel load_model(const fs::path& given, std::optional<at::ScalarType> chosen, at::Device device, const parallel::Layout& layout) {
  const fs::path path = (given / "").parent_path();  // without a trailing slash
  if (!fs::exists(path))
    throw base::ModelError("there is no {}; give a run directory, a checkpoint, a Hugging Face folder or an archive", path.string());
  if (!fs::is_directory(path)) return load_archive(path, chosen, device, layout);
  const auto dtype = chosen.value_or(at::kFloat);
  if (fs::exists(path / "config.json")) return {models::load_hugging_face_model(path, dtype, device, layout), tokenizer_in(path), {}};
  const bool holds_some = fs::exists(path / checkpoint::kMetadataName) || !checkpoint::all(checkpoint::resolve_folder(path)).empty();
  if (holds_some) return from_checkpoint(checkpoint::resolve_checkpoint(path), dtype, device, layout);
  if (fs::exists(path / "config.toml"))
    throw base::ModelError("{} is a run directory in which nothing is saved yet (checkpoint.every)", path.string());
  throw base::ModelError(
      "{} has neither checkpoints nor a config.json; give a run directory, a checkpoint, a Hugging Face folder or an archive",
      path.string());
}

LoadedModel load_model_over(const fs::path& path, std::optional<at::ScalarType> dtype, at::Device device, comm::Group* ranks,
                            const std::string& axis) {
  if (!ranks) return load_model(path, dtype, device);
  if (!axis.empty()) return load_model(path, dtype, device, layout_over(*ranks, axis));
  std::string why;
  for (const char* each : {"tensor", "tensor_sequence", "experts"}) try {
      return load_model(path, dtype, device, layout_over(*ranks, each));
    } catch (const base::ConfigError& error) {
      why += fmt::format("\n  {}: {}", each, error.what());
    }
  throw base::ConfigError("{} ranks cannot share {} out by any axis:{}", ranks->size(), path.string(), why);
}

const data::Tokenizer& tokenizer_for(LoadedModel& loaded, const fs::path& path) {
  if (!path.empty()) loaded.tokenizer = data::load_tokenizer(path), loaded.files.clear();
  if (!loaded.tokenizer) throw base::UsageError("the model has no tokenizer of its own; give one with --tokenizer");
  if (loaded.tokenizer->vocab_size() > loaded.model->config().vocab_size)
    throw base::ModelError("the tokenizer has {} tokens, but the model knows {}; is it another model's? (--tokenizer)",
                           loaded.tokenizer->vocab_size(), loaded.model->config().vocab_size);
  return *loaded.tokenizer;
}

std::optional<data::chat::ChatTemplate> chat_template_of(const LoadedModel& loaded, const fs::path& path) {
  using data::chat::ChatTemplate;
  const auto folder = loaded.tokenizer->path().parent_path();
  if (!path.empty()) return loaded.files.empty() ? ChatTemplate::of_file(path, folder) : ChatTemplate::of_file(path, loaded.files);
  return loaded.files.empty() ? ChatTemplate::of_folder(folder) : ChatTemplate::of_files(loaded.files);
}

// Beside the tokenizer's own: what ends a turn in a conversation.
std::vector<int64_t> ends_of(const LoadedModel& loaded) {
  const char* name = "generation_config.json";
  const auto path = loaded.tokenizer->path().parent_path() / name;
  const auto found = loaded.files.find(name);
  const auto text = found != loaded.files.end() ? found->second : loaded.files.empty() && fs::exists(path) ? base::read_file(path) : "";
  const auto config = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto ends = config.is_object() ? config.value("eos_token_id", nlohmann::json()) : nlohmann::json();
  std::vector<int64_t> ids;
  for (const auto& id : ends.is_array() ? ends : nlohmann::json::array({ends}))
    if (id.is_number_integer()) ids.push_back(id.get<int64_t>());
  return ids;
}

}  // namespace ingot::serve
