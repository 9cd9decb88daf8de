#include "serve/archive.h"

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <random>

#include "base/error.h"
#include "base/files.h"
#include "checkpoint/safetensors/archive.h"
#include "layers/dtype.h"
#include "models/adapters.h"
#include "serve/engine/engine.h"
#include "serve/engine/runner.h"

namespace ingot::serve {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::unique_ptr<models::Model> made(const models::ModelConfig& config, at::ScalarType dtype = at::kFloat) {
  auto model = models::create_model(config);
  model->allocate(dtype);
  model->initialise(3);
  return model;
}

std::vector<int64_t> text_of(models::Model& model) {
  Engine engine(model);
  const auto text = engine.submit({.prompt = {5, 7, 2, 9}, .most_tokens = 12});
  std::vector<int64_t> ids;
  for (auto ended = Ended::not_yet; ended == Ended::not_yet;) {
    const auto news = text->wait(std::chrono::seconds(60));
    for (const auto& token : news.tokens) ids.push_back(token.id);
    ended = news.ended;
  }
  return ids;
}

class ServedArchive : public ::testing::Test {
 protected:
  fs::path folder = fs::temp_directory_path() / ("ingot_served_archive_" + std::to_string(::getpid()));
  fs::path file = folder / "m.safetensors";
  void SetUp() override { fs::create_directories(folder); }
  void TearDown() override { fs::remove_all(folder); }
  LoadedModel load(std::optional<at::ScalarType> dtype = {}) const { return load_model(file, dtype, at::kCPU); }
  std::string refusal() const {
    try {
      load();
    } catch (const base::Error& error) {
      return error.what();
    }
    return "accepted";
  }
  // The archive's tensors and metadata, changed by `change`, as a file whose header is right.
  void rewrite(const std::function<void(std::vector<checkpoint::SafetensorsItem>&, std::map<std::string, std::string>&)>& change) const {
    const checkpoint::SafetensorsReader reader(file);
    std::vector<checkpoint::SafetensorsItem> items;
    for (const auto& tensor : reader.tensors())
      if (!checkpoint::is_of_archive(tensor.name)) items.push_back({tensor, [&reader, name = tensor.name] { return reader.bytes(name); }});
    auto metadata = reader.metadata();
    change(items, metadata);
    checkpoint::write_archive(folder / "new", items, {}, metadata);
    fs::rename(folder / "new", file);
  }
};

class EveryFamilysArchive : public ServedArchive, public ::testing::WithParamInterface<std::string> {};

TEST_P(EveryFamilysArchive, is_the_model_bit_for_bit_in_the_memory_of_the_file) {
  const auto model = made(models::small_model(GetParam()));
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    export_archive(*model, nullptr, file, dtype);
    const auto loaded = load();
    EXPECT_EQ(loaded.model->dtype(), dtype);
    EXPECT_EQ(loaded.tokenizer, nullptr);
    ASSERT_EQ(loaded.model->parameters().all().size(), model->parameters().all().size());
    for (const auto& p : loaded.model->parameters().all()) {
      const auto& before = model->parameters().get(p->name).value;
      EXPECT_EQ(p->value.scalar_type(), dtype == at::kBFloat16 && !p->keeps_fp32 ? at::kBFloat16 : at::kFloat) << p->name;
      EXPECT_TRUE(at::equal(p->value, before.to(p->value.scalar_type()))) << p->name;
      EXPECT_EQ(reinterpret_cast<uintptr_t>(p->value.const_data_ptr()) % 64, 0u) << p->name;
    }
    // The decoder computes with the mapping itself, where the parameters lie one behind the other.
    const auto& all = loaded.model->parameters().all();
    const auto* first = static_cast<const char*>(all.front()->value.const_data_ptr());
    const auto* last = static_cast<const char*>(all.back()->value.const_data_ptr());
    EXPECT_LT(last - first, static_cast<int64_t>(fs::file_size(file)));
    EXPECT_GT(last, first);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, EveryFamilysArchive, ::testing::ValuesIn(models::family_names()),
                         [](const auto& info) { return info.param; });

TEST_F(ServedArchive, gives_the_text_of_the_model_that_it_was_made_of) {
  const auto model = made(models::small_model("zaya1"));
  export_archive(*model, nullptr, file, at::kFloat);
  EXPECT_EQ(text_of(*load().model), text_of(*model));
  const auto as_bf16 = made(models::small_model("zaya1"), at::kBFloat16);
  EXPECT_EQ(text_of(*load(at::kBFloat16).model), text_of(*as_bf16));  // of another dtype than the file: copied
}

TEST_F(ServedArchive, fewer_bits_round_in_this_process_and_leave_the_file_alone) {
  export_archive(*made(models::small_model("llama")), nullptr, file, at::kFloat);
  const auto before = base::read_file(file);
  const auto loaded = load();
  const auto decoder = make_decoder(*loaded.model, kernels::WeightFormat::int8);
  const char* matrix = "model.layers.1.mlp.down_proj.weight";
  EXPECT_FALSE(at::equal(loaded.model->parameters().get(matrix).value, load().model->parameters().get(matrix).value));
  EXPECT_EQ(base::read_file(file), before);
}

TEST_F(ServedArchive, a_model_outlives_the_name_of_its_file) {
  const auto model = made(models::small_model("llama"));
  export_archive(*model, nullptr, file, at::kFloat);
  const auto loaded = load();
  export_archive(*made(models::small_model("zaya1")), nullptr, file, at::kFloat);  // renamed over it
  EXPECT_EQ(text_of(*loaded.model), text_of(*model));
}

TEST_F(ServedArchive, adapters_are_merged) {
  auto config = models::small_model("llama");
  config.lora_rank = 2;
  const auto model = made(config);
  const at::NoGradGuard no_grad;
  for (const auto& p : model->parameters().all())
    if (p->name.ends_with(".lora_B.weight")) p->value.fill_(0.05);
  export_archive(*model, nullptr, file, at::kFloat);
  const auto loaded = load();
  EXPECT_EQ(loaded.model->config().lora_rank, 0);
  const auto& q = model->parameters().get("model.layers.1.self_attn.q_proj.weight");
  const auto& merged = loaded.model->parameters().get(q.name).value;
  EXPECT_FALSE(at::equal(merged, q.value));
  EXPECT_TRUE(at::equal(merged, models::merged(q, [](const layers::Parameter& p) { return p.value; })));
}

TEST_F(ServedArchive, what_does_not_fit_is_refused_by_name) {
  const auto model = made(models::small_model("llama"));
  const auto after = [&](const auto& change) {
    export_archive(*model, nullptr, file, at::kFloat);
    rewrite(change);
    return refusal();
  };
  using Items = std::vector<checkpoint::SafetensorsItem>;
  using Texts = std::map<std::string, std::string>;
  EXPECT_EQ(after([](Items&, Texts&) {}), "accepted");
  EXPECT_THAT(after([](Items& items, Texts&) { items.pop_back(); }), HasSubstr("is missing"));
  EXPECT_THAT(after([](Items& items, Texts&) { items[0].tensor.name = "model.other.weight"; }),
              HasSubstr("model.other.weight is not part of a llama model"));
  EXPECT_THAT(after([](Items& items, Texts&) { std::swap(items[0].tensor.shape[0], items[0].tensor.shape[1]); }),
              HasSubstr("the settings ask for"));
  EXPECT_THAT(after([](Items&, Texts& texts) { texts.at("dtype") = "bf16"; }), HasSubstr("ask for bf16"));
  EXPECT_THAT(after([](Items&, Texts& texts) { texts.at("dtype") = "int3"; }), HasSubstr("int3"));
  EXPECT_THAT(after([](Items&, Texts& texts) { texts.erase("config.toml"); }), HasSubstr("no config.toml"));
  EXPECT_THAT(after([](Items&, Texts& texts) { texts.at("config.toml") = "[model]\nhidden = 'x'\n"; }), HasSubstr("hidden"));
  EXPECT_THAT(after([](Items&, Texts& texts) { texts.at("config.toml") = "[model]\nfamily = 'llama'\nlayers = 1000000000000\n"; }),
              HasSubstr("layers, but has"));
  EXPECT_THAT(after([](Items&, Texts& texts) { texts.at("config.toml") += "\n[other]\nx = 1\n"; }), HasSubstr("other"));
  EXPECT_THAT(
      after([](Items&, Texts& texts) { texts.at("config.toml") = "[model]\nfamily = 'llama'\nhidden = 7\nheads = 3\nlayers = 1\n"; }),
      HasSubstr("m.safetensors"));
  std::ofstream(file) << "not an archive";
  EXPECT_THAT(refusal(), HasSubstr("m.safetensors"));
  checkpoint::write_safetensors(file, {});
  EXPECT_THAT(refusal(), HasSubstr("export-archive"));
}

// Whatever its bytes, a file gives a model or an error of ours; a truncated one never a model.
TEST_F(ServedArchive, fuzz_mutated_and_truncated_files_are_refused_or_load) {
  export_archive(*made(models::small_model("zaya1")), nullptr, file, at::kFloat);
  const auto whole = base::read_file(file);
  uint64_t header = 0;
  std::memcpy(&header, whole.data(), sizeof(header));
  const auto put = [&](const std::string& bytes) {
    fs::remove(file);
    std::ofstream(file, std::ios::binary) << bytes;
  };
  std::mt19937_64 random(20261128);
  for (int round = 0; round < 60; ++round) {
    put(whole.substr(0, random() % whole.size()));
    EXPECT_NE(refusal(), "accepted");
  }
  int accepted = 0;
  for (int round = 0; round < 400; ++round) {
    auto bytes = whole;
    for (int edits = 1 + static_cast<int>(random() % 3); edits > 0; --edits) {
      const size_t at = 8 + random() % header;
      bytes[at] = static_cast<char>(random() % 2 ? '0' + random() % 10 : 32 + random() % 95);
    }
    put(bytes);
    accepted += refusal() == "accepted";
  }
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace ingot::serve
