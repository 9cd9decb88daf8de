// Pickles, zip archives and DCP's index with forged lengths, spliced halves and noise: values or a CheckpointError, and memory that is a
// multiple of what was read. (Single changed bytes and truncations of recorded checkpoints: pickle_test.cpp, zip_test.cpp, dcp_test.cpp.)
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "interchange/test_support.h"

namespace ingot::interchange {
namespace {

using base::CheckpointError;
using checkpoint::fuzz;

std::vector<std::string> recorded_indexes() {
  std::vector<std::string> out;
  for (const char* fixture : {"single", "two_ranks", "megatron"}) out.push_back(base::read_file(kFixtures / fixture / kDcpMetadataName));
  return out;
}

std::string torch_archive(bool zip64) {
  std::string out;
  const auto append = [&](const void* data, int64_t size_bytes) {
    out.append(static_cast<const char*>(data), static_cast<size_t>(size_bytes));
  };
  const std::vector<std::byte> elements(120, std::byte{7});
  write_torch_tensor(append, tensor::DType::fp32, {5, 6}, elements.data(), zip64);
  return out;
}

TEST(Fuzz, pickles_are_read_or_refused_with_memory_of_their_size) {
  std::vector<std::string> valid = recorded_indexes();
  PickleWriter writer;
  writer.empty_dict().mark().text("a").integers({1, -2, 1 << 30}).text("b").bytes("\x01\x02").text("c").empty_list().mark().none();
  valid.push_back(writer.boolean(true).append_all().set_all().finish());
  const auto result = fuzz<CheckpointError>(valid, 6000, 300, [](const std::string& bytes) { const Pickle pickle(bytes, "file"); });
  EXPECT_GT(result.refused, 2000);
  EXPECT_GT(result.read, 100);
  fuzz<CheckpointError>(valid, 1500, 4000, [](const std::string& bytes) { to_json(Pickle(bytes, "file").root()); });
}

TEST(Fuzz, indexes_of_dcp_are_read_or_refused_with_memory_of_their_size) {
  const auto result = fuzz<CheckpointError>(recorded_indexes(), 6000, 500, [](const std::string& bytes) {
    const auto metadata = decode_dcp(Pickle(bytes, "file"));
    for (const auto& record : metadata.tensors)
      for (const auto& chunk : record.chunks) ASSERT_LT(chunk.place.file, metadata.files.size());
  });
  EXPECT_GT(result.refused, 2000);
  EXPECT_GT(result.read, 30);
}

// A bug: each of the entries, of some ten bytes, got a copy of the long name before it was found to occur twice.
TEST(Fuzz, an_index_that_repeats_a_long_name_costs_no_more_than_its_size) {
  const std::string name(4000, 'n'), module = "torch.distributed.checkpoint.metadata";
  PickleWriter out;
  const auto begin_object = [&](const std::string& of_module, const std::string& kind) {
    out.global(of_module, kind).empty_tuple().new_object().empty_dict().mark();
  };
  const auto end_object = [&] { out.set_all().build(); };
  begin_object(module, "Metadata");
  out.text("state_dict_metadata").empty_dict().mark();
  for (int i = 0; i < 20000; ++i) {
    out.shared_text(name);
    begin_object(module, "BytesStorageMetadata");
    end_object();
  }
  out.set_all().text("storage_data").empty_dict().mark();
  begin_object(module, "MetadataIndex");
  out.text("fqn").shared_text(name);
  end_object();
  begin_object("torch.distributed.checkpoint.filesystem", "_StorageInfo");
  out.text("relative_path").text("__0_0.distcp").text("offset").integer(0).text("length").integer(10);
  end_object();
  out.set_all();
  end_object();
  const std::string bytes = out.finish();
  const Pickle pickle(bytes, "file");
  MemoryPeak::reset();
  EXPECT_THROW(decode_dcp(pickle), CheckpointError);
  EXPECT_LT(MemoryPeak::bytes(), (1 << 20) + 50 * static_cast<int64_t>(bytes.size())) << "for " << bytes.size() << " bytes";
}

TEST(Fuzz, archives_are_read_or_refused_with_memory_of_their_size) {
  const auto result = fuzz<CheckpointError>({torch_archive(false), torch_archive(true)}, 10000, 100, [](const std::string& bytes) {
    const ZipReader reader(view_of(bytes));
    for (const ZipEntry& entry : reader.entries()) {
      ASSERT_LE(reader.read(entry, false).size(), bytes.size());
      ASSERT_LE(reader.data_offset(entry) + entry.size_bytes, static_cast<int64_t>(bytes.size()));
    }
  });
  EXPECT_GT(result.refused, 1000);
  EXPECT_GT(result.read, 100);
}

TEST(Fuzz, tensors_of_archives_lie_within_them_or_are_refused) {
  const auto result = fuzz<CheckpointError>({torch_archive(false), torch_archive(true)}, 10000, 200, [](const std::string& bytes) {
    const TorchArchive archive(view_of(bytes), false);
    if (!TorchArchive::is_tensor(archive.root())) return;
    const auto stored = archive.tensor(archive.root());
    if (tensor::element_count(stored.shape) == 0) return;
    int64_t last = stored.begin;
    for (size_t d = 0; d < stored.shape.size(); ++d) last += (stored.shape[d] - 1) * stored.stride[d];
    const int64_t width = tensor::size_bytes(stored.dtype);
    ASSERT_LE(stored.data_offset + (last + 1) * width, static_cast<int64_t>(bytes.size()));
  });
  EXPECT_GT(result.refused, 1000);
  EXPECT_GT(result.read, 100);
}

}  // namespace
}  // namespace ingot::interchange
