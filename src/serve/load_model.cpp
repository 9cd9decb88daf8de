#include "serve/load_model.h"

#include "base/error.h"
#include "checkpoint/load/reader.h"
#include "checkpoint/storage/folder.h"
#include "models/hugging_face.h"
#include "train/checkpointing.h"
#include "train/config.h"
#include "train/phases.h"

namespace ingot::serve {
namespace {

namespace fs = std::filesystem;

std::unique_ptr<data::Tokenizer> tokenizer_in(const fs::path& folder) {
  if (!fs::exists(folder / "tokenizer.json") && !fs::exists(folder / "tokenizer.model")) return nullptr;
  return data::load_tokenizer(folder);
}

LoadedModel from_checkpoint(const fs::path& path, at::ScalarType dtype, at::Device device, const parallel::Layout& layout) {
  const checkpoint::Reader reader(path);
  train::RunConfig config;
  train::settings_of(config).load_toml(train::config_of(reader), (path / "config.toml").string());
  LoadedModel loaded{models::create_model(config.model, layout), nullptr};
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

LoadedModel load_model(const fs::path& given, at::ScalarType dtype, at::Device device, const parallel::Layout& layout) {
  const fs::path path = (given / "").parent_path();  // without a trailing slash
  if (!fs::exists(path))
    throw base::ModelError("there is no {}; give a run directory, a checkpoint, or a Hugging Face folder", path.string());
  if (fs::exists(path / "config.json")) {
    LoadedModel loaded{models::load_hugging_face_model(path, dtype, device, layout), tokenizer_in(path)};
    return loaded;
  }
  if (!fs::is_directory(path))
    throw base::ModelError("{} is a file; give a run directory, a checkpoint, or a Hugging Face folder", path.string());
  for (const auto& folder : {path / "checkpoints", path}) {
    if (const auto newest = checkpoint::latest(folder)) return from_checkpoint(newest->path, dtype, device, layout);
  }
  if (!fs::exists(path / "metadata.bin"))
    throw base::ModelError("{} has neither checkpoints nor a config.json; give a run directory, a checkpoint, or a Hugging Face folder",
                           path.string());
  return from_checkpoint(path, dtype, device, layout);
}

const data::Tokenizer& tokenizer_for(LoadedModel& loaded, const fs::path& path) {
  if (!path.empty()) loaded.tokenizer = data::load_tokenizer(path);
  if (!loaded.tokenizer) throw base::UsageError("the model has no tokenizer of its own; give one with --tokenizer");
  if (loaded.tokenizer->vocab_size() > loaded.model->config().vocab_size)
    throw base::ModelError("the tokenizer has {} tokens, but the model knows {}; is it another model's? (--tokenizer)",
                           loaded.tokenizer->vocab_size(), loaded.model->config().vocab_size);
  return *loaded.tokenizer;
}

}  // namespace ingot::serve
