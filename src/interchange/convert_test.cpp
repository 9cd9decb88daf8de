#include "interchange/convert.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "checkpoint/load/verify.h"
#include "interchange/test_support.h"

namespace ingot::interchange {
namespace {

using nlohmann::json;
using tensor::DType;
using ::testing::HasSubstr;

class Convert : public checkpoint::TemporaryFolder {
 protected:
  Convert() : TemporaryFolder(checkpoint::memory_folder()) {}
};

TEST_F(Convert, an_import_holds_every_bit_of_a_recorded_checkpoint) {
  int64_t step = 0;
  for (const char* fixture : {"single", "two_ranks", "four_ranks", "two_by_two", "megatron"}) {
    const json book = book_of(fixture);
    const ConvertReport report = import_dcp(kFixtures / fixture, folder, {.step = ++step, .piece_limit_bytes = 50});
    EXPECT_EQ(report.path, folder / checkpoint::step_name(step));
    EXPECT_EQ(report.tensors, static_cast<int64_t>(book["tensors"].size()));
    EXPECT_TRUE(checkpoint::verify(report.path).sound());
    const checkpoint::Reader reader(report.path);
    for (const auto& tensor : reader.list()) {
      const json& entry = book["tensors"][tensor.name];
      EXPECT_EQ(json(tensor.shape), entry["shape"]);
      EXPECT_EQ(reader.read(tensor.name), expected_elements(entry["id"].get<uint64_t>(), tensor, tensor::whole(tensor.shape)))
          << tensor.name;
    }
    for (const auto& [name, value] : book["objects"].items()) EXPECT_EQ(json::parse(reader.extra("dcp/" + name + ".json")), value);
  }
  EXPECT_EQ(json::parse(checkpoint::Reader(folder / checkpoint::step_name(5)).extra("dcp/common.json"))["iteration"], 42);
  EXPECT_EQ(checkpoint::all(folder).size(), 5u);
}

TEST_F(Convert, an_ingot_checkpoint_goes_to_dcp_and_back_unchanged) {
  const auto sample = checkpoint::Sample::usual(3);
  const std::map<std::string, std::string> extras = {{"state.json", "{\"x\": 1}"}, {"raw", std::string("\xff\0\x01", 3)}};
  const auto saved = checkpoint::save(folder / "a", 12, sample.items(), extras);
  const ConvertReport exported = export_dcp(saved.path, folder / "dcp", {.write = {.chunk_limit_bytes = 1000}});
  EXPECT_EQ(exported.tensors, 5);
  EXPECT_EQ(exported.extras, 2);
  const ConvertReport imported = import_dcp(folder / "dcp", folder / "b", {.step = 12});
  EXPECT_TRUE(sample.is_in(imported.path));
  const checkpoint::Reader reader(imported.path);
  EXPECT_EQ(reader.step(), 12);
  EXPECT_EQ(reader.extras().size(), extras.size());
  for (const auto& [name, content] : extras) EXPECT_EQ(reader.extra(name), content);
}

TEST_F(Convert, names_are_changed_and_left_out_as_asked) {
  const Rename rename = [](const std::string& name) -> std::optional<std::string> {
    if (!name.starts_with("model.")) return std::nullopt;
    return "weights." + name.substr(6);
  };
  const ConvertReport report = import_dcp(kFixtures / "single", folder, {.rename = rename});
  const checkpoint::Reader reader(report.path);
  ASSERT_EQ(reader.list().size(), 2u);
  EXPECT_EQ(reader.list()[1].name, "weights.layers.0.weight");
  EXPECT_EQ(report.left_out.size(), book_of("single")["tensors"].size() - 2);
  const tensor::LogicalTensor original{"", DType::bf16, {8, 6}};
  EXPECT_EQ(
      reader.read("weights.layers.0.weight"),
      expected_elements(book_of("single")["tensors"]["model.layers.0.weight"]["id"].get<uint64_t>(), original, tensor::whole({8, 6})));
  EXPECT_THROW(import_dcp(kFixtures / "single", folder,
                          {.step = 1, .rename = [](const std::string&) { return std::optional<std::string>("same"); }}),
               base::CheckpointError);
}

TEST_F(Convert, a_failed_import_leaves_nothing_and_an_existing_checkpoint_is_kept) {
  const fs::path copy = folder / "dcp";
  fs::copy(kFixtures / "two_ranks", copy);
  std::string bytes = checkpoint::content_of(copy / "__1_0.distcp");
  bytes.resize(bytes.size() / 2);
  checkpoint::put_content(copy / "__1_0.distcp", bytes);
  EXPECT_THROW(import_dcp(copy, folder / "out"), base::CheckpointError);
  EXPECT_TRUE(fs::is_empty(folder / "out"));
  import_dcp(kFixtures / "two_ranks", folder / "out");
  try {
    import_dcp(kFixtures / "single", folder / "out");
    FAIL();
  } catch (const base::CheckpointError& error) {
    EXPECT_THAT(error.what(), HasSubstr("already there; choose another step or folder"));
  }
  EXPECT_EQ(checkpoint::Reader(folder / "out" / "step_00000000").list().size(), book_of("two_ranks")["tensors"].size());
}

}  // namespace
}  // namespace ingot::interchange
