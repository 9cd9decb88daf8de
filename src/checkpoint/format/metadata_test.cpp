#include "checkpoint/format/metadata.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <random>

#include "base/error.h"

namespace ingot::checkpoint {
namespace {

using tensor::DType;
using ::testing::HasSubstr;

Metadata sample() {
  Metadata metadata{{0x1122334455667788, 0x99aabbccddeeff00}, 1000, {{"data_00000.bin", 4096 + 200}, {"data_00001.bin", 192}}, {}, {}};
  metadata.tensors.push_back({{"a", DType::fp32, {5, 10}}, {{{{0, 0}, {2, 10}}, 0, 64, {1, 2}}, {{{2, 0}, {3, 10}}, 0, 192, {3, 4}}}});
  metadata.tensors.push_back({{"b.scalar", DType::int64, {}}, {{{{}, {}}, 0, 320, {5, 6}}}});
  metadata.tensors.push_back({{"c.empty", DType::bf16, {0, 7}}, {}});
  metadata.tensors.push_back({{"d", DType::int8, {100}}, {{{{0}, {100}}, 1, 64, {7, 8}}}});
  metadata.extras.push_back({"cursor", 0, 4096, 200, {9, 10}});
  return metadata;
}

// Recomputes size and checksum, as someone would who forges metadata: what follows must hold without their help.
std::string resealed(std::string bytes) {
  const uint64_t size = bytes.size();
  std::memcpy(bytes.data() + 40, &size, 8);
  const std::string covered = bytes.substr(0, 48) + bytes.substr(64);
  const XXH128_hash_t hash = XXH3_128bits(covered.data(), covered.size());
  std::memcpy(bytes.data() + 48, &hash.low64, 8);
  std::memcpy(bytes.data() + 56, &hash.high64, 8);
  return bytes;
}

void expect_refused(const std::string& bytes, const std::string& words) {
  try {
    decode(bytes, "FILE");
    ADD_FAILURE() << "accepted; expected: " << words;
  } catch (const base::CheckpointError& error) {
    EXPECT_THAT(error.what(), HasSubstr(words));
    EXPECT_THAT(error.what(), HasSubstr("FILE"));
  }
}

void expect_refused(const std::function<void(Metadata&)>& change, const std::string& words) {
  Metadata metadata = sample();
  change(metadata);
  expect_refused(encode(metadata), words);
}

TEST(Metadata, encodes_and_decodes_to_the_same) {
  const std::string bytes = encode(sample());
  const Metadata decoded = decode(bytes, "FILE");
  EXPECT_EQ(encode(decoded), bytes);
  EXPECT_EQ(decoded.step, 1000);
  EXPECT_EQ(to_string(decoded.id), "99aabbccddeeff001122334455667788");
  EXPECT_EQ(decoded.tensors[0].tensor, (tensor::LogicalTensor{"a", DType::fp32, {5, 10}}));
  EXPECT_EQ(decoded.tensors[0].pieces[1].box, (tensor::Box{{2, 0}, {3, 10}}));
  EXPECT_EQ(decoded.tensors[0].pieces[1].digest, (Digest{3, 4}));
  EXPECT_EQ(decoded.files[1].name, "data_00001.bin");
  EXPECT_EQ(decoded.extras[0].size_bytes, 200);
}

// The bytes as docs/checkpoint-format.md describes them, put together by hand. They may change only with the version.
TEST(Metadata, bytes_are_those_of_the_document) {
  Metadata metadata{{0x0807060504030201, 0x100f0e0d0c0b0a09}, 258, {{"data_00000.bin", 330}}, {}, {}};
  metadata.tensors.push_back({{"w", DType::bf16, {300, 1}}, {}});
  metadata.files[0].size_bytes = 64 + 600;
  metadata.tensors[0].pieces.push_back({{{0, 0}, {300, 1}}, 0, 64, {0x1817161514131211, 0x2827262524232221}});
  const std::string digest = "\x11\x12\x13\x14\x15\x16\x17\x18\x21\x22\x23\x24\x25\x26\x27\x28";
  const auto section = [](char kind, const std::string& content) {
    return std::string{kind, 0, 0, 0, 1, 0, 0, 0, static_cast<char>(content.size()), 0, 0, 0, 0, 0, 0, 0} + content;
  };
  using namespace std::string_literals;
  const std::string body = section(1,
                                   "\x01\x0e"
                                   "data_00000.bin"
                                   "\x98\x05"s) +
                           section(2, "\x01\x01w\x03\x02\xac\x02\x01\x01\x17"s) +
                           section(3, "\x00\x00"s.substr(0, 1) + "\xac\x02\x00\x01\x00\x40"s + digest) + section(4, "\x00"s);
  std::string expected = "INGOTMET\x01\x00\x00\x00\x04\x00\x00\x00"s + "\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10"s +
                         "\x02\x01\x00\x00\x00\x00\x00\x00"s + std::string(8 + 16, '\0') + body;
  EXPECT_EQ(::testing::PrintToString(encode(metadata)), ::testing::PrintToString(resealed(expected)));
}

TEST(Metadata, every_flipped_bit_and_every_other_length_is_refused) {
  const std::string bytes = encode(sample());
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string damaged = bytes;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_THROW(decode(damaged, "FILE"), base::CheckpointError) << "bit " << bit;
  }
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(decode(bytes.substr(0, size), "FILE"), base::CheckpointError) << size;
    EXPECT_THROW(decode(resealed(bytes.substr(0, std::max<size_t>(size, 64))), "FILE"), base::CheckpointError) << "resealed " << size;
  }
  EXPECT_THROW(decode(bytes + '\0', "FILE"), base::CheckpointError);
  EXPECT_THROW(decode(resealed(bytes + '\0'), "FILE"), base::CheckpointError);
}

TEST(Metadata, forged_tensors_are_refused) {
  expect_refused([](Metadata& m) { m.tensors[0].pieces.pop_back(); }, "tensor 'a' of shape [5, 10]: elements in the box");
  expect_refused([](Metadata& m) { m.tensors[0].pieces[1].box.offset[0] = 1; }, "tensor 'a'");
  expect_refused([](Metadata& m) { m.tensors[0].pieces[1].box.extent[0] = 4; }, "outside the shape");
  expect_refused([](Metadata& m) { m.tensors[0].pieces[1].box.offset[0] = INT64_MAX; }, "outside the shape");
  expect_refused([](Metadata& m) { m.tensors[0].pieces[1].box.offset[0] = -1; }, "more than 63 bits");
  expect_refused([](Metadata& m) { m.tensors[0].tensor.shape = {int64_t{1} << 40, int64_t{1} << 40}; }, "tensor 'a'");
  expect_refused([](Metadata& m) { m.tensors[0].tensor.shape = {int64_t{1} << 61, 1}; }, "more than 2^63 bytes");
  expect_refused([](Metadata& m) { m.tensors[1].tensor.name = "a"; }, "listed twice");
  expect_refused([](Metadata& m) { std::swap(m.tensors[0], m.tensors[1]); }, "out of order");
  expect_refused([](Metadata& m) { m.tensors[0].tensor.name = ""; }, "name of a tensor");
  expect_refused([](Metadata& m) { m.tensors[0].tensor.name = "\x1b[2J"; }, "control characters");
  expect_refused(
      [](Metadata& m) {
        m.tensors[2].pieces = m.tensors[3].pieces;
        m.tensors[2].pieces[0].box = {{0, 0}, {0, 7}};
      },
      "is empty");
}

TEST(Metadata, forged_places_are_refused) {
  expect_refused([](Metadata& m) { m.tensors[0].pieces[1].offset = 128; }, "'a' overlaps");
  expect_refused([](Metadata& m) { m.extras[0].offset = 320; }, "overlaps");
  expect_refused([](Metadata& m) { m.tensors[0].pieces[0].offset = 0; }, "outside its");
  expect_refused([](Metadata& m) { m.tensors[3].pieces[0].offset = INT64_MAX; }, "outside its");
  expect_refused([](Metadata& m) { m.files[0].size_bytes = 1 << 20; }, "belong to nothing");
  expect_refused(
      [](Metadata& m) {
        m.files[0].size_bytes += 1 << 20;
        m.extras[0].offset += 1 << 20;
      },
      "hole");
  expect_refused([](Metadata& m) { m.files[1].size_bytes = 10; }, "less than its header");
  expect_refused([](Metadata& m) { m.tensors[0].pieces[0].file = 2; }, "file that does not exist");
  expect_refused([](Metadata& m) { m.extras[0].file = 7; }, "file that does not exist");
  for (const char* name : {"", ".", "..", "../x", "/etc/passwd", "a/b", "a\\b", ".hidden", "metadata.bin", "new\nline"})
    expect_refused([&](Metadata& m) { m.files[0].name = name; }, "may not be called");
  expect_refused([](Metadata& m) { m.files[0].name = m.files[1].name; }, "twice");
}

TEST(Metadata, counts_larger_than_the_file_are_refused_before_anything_is_allocated) {
  const std::string bytes = encode(sample());
  const std::string huge = "\xff\xff\xff\xff\xff\xff\xff\xff\x7f";  // 2^63 - 1
  for (size_t at = 64; at < bytes.size(); ++at) {
    std::string damaged = bytes;
    damaged.replace(at, 1, huge);
    EXPECT_THROW(decode(resealed(damaged), "FILE"), base::CheckpointError) << at;
  }
}

TEST(Metadata, newer_versions_and_sections_are_refused_or_skipped_as_marked) {
  using namespace std::string_literals;
  std::string newer = encode(sample());
  newer[8] = 2;
  expect_refused(resealed(newer), "use a newer one");
  std::string unknown = encode(sample());
  unknown[12] = 5;
  expect_refused(resealed(unknown + "\x09\0\0\0\x01\0\0\0\x03\0\0\0\0\0\0\0abc"s), "section of kind 9");
  EXPECT_EQ(decode(resealed(unknown + "\x09\0\0\0\x00\0\0\0\x03\0\0\0\0\0\0\0abc"s), "FILE").step, 1000);
  expect_refused(resealed(unknown + "\x04\0\0\0\x01\0\0\0\x03\0\0\0\0\0\0\0abc"s), "not in order");
}

// With a valid checksum, so that the parser itself is reached: it throws, or returns what encodes to the same bytes.
TEST(Metadata, fuzz_forged_bytes_never_crash_and_decode_canonically) {
  const std::string bytes = encode(sample());
  std::mt19937_64 random(42);
  int decoded = 0;
  for (int round = 0; round < 100000; ++round) {
    std::string mutated = bytes;
    for (uint64_t edits = 1 + random() % 3; edits > 0; --edits) {
      const size_t at = 8 + random() % (mutated.size() - 8);
      switch (random() % 4) {
        case 0: mutated[at] = static_cast<char>(random()); break;
        case 1: mutated[at] = static_cast<char>(mutated[at] ^ (1 << (random() % 8))); break;
        case 2: mutated.insert(at, 1, static_cast<char>(random())); break;
        default:
          if (mutated.size() > 80) mutated.erase(at, 1);
      }
    }
    mutated = resealed(mutated);
    try {
      EXPECT_TRUE(encode(decode(mutated, "FILE")) == mutated) << "round " << round;
      ++decoded;
    } catch (const base::CheckpointError&) {
    }
  }
  EXPECT_GT(decoded, 100) << "the fuzzer never gets past the checks";
}

TEST(Metadata, a_million_pieces_are_compact_and_decode_quickly) {
  constexpr int64_t kTensors = 1000, kRows = 1000;
  Metadata metadata{{1, 2}, 5, {{"data_00000.bin", 64 + kTensors * kRows * 4096}}, {}, {}};
  for (int64_t t = 0; t < kTensors; ++t) {
    TensorRecord record{{fmt::format("layers.{:04}.weight", t), DType::fp32, {kRows, 1024}}, {}};
    for (int64_t r = 0; r < kRows; ++r)
      record.pieces.push_back({{{r, 0}, {1, 1024}}, 0, 64 + (t * kRows + r) * 4096, {static_cast<uint64_t>(t), static_cast<uint64_t>(r)}});
    metadata.tensors.push_back(std::move(record));
  }
  const std::string bytes = encode(metadata);
  EXPECT_LT(bytes.size(), 32u * kTensors * kRows);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(decode(bytes, "FILE").tensors.size(), static_cast<size_t>(kTensors));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  RecordProperty("decode_s", fmt::format("{:.2f}", seconds));
  EXPECT_LT(seconds, 30) << "decoding is not linear";  // 0.3 s, and 11 s under the address sanitizer
}

}  // namespace
}  // namespace ingot::checkpoint
