// GGUF files: their bytes, written out by hand from the format's description, and what is refused.
#include "gguf/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/files.h"
#include "gguf/encode.h"

namespace ingot::gguf {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class GgufTest : public testing::Test {
 protected:
  GgufTest() { fs::create_directories(folder_); }
  ~GgufTest() override { fs::remove_all(folder_); }
  fs::path folder_ = base::temporary_folder() / ("gguf_test_" + std::to_string(::getpid()));
};

std::string number(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text.push_back(static_cast<char>(value >> (8 * i)));
  return text;
}
std::string text(const std::string& value) { return number(value.size(), 8) + value; }
std::string padded(std::string bytes) {
  bytes.resize((bytes.size() + 31) / 32 * 32);
  return bytes;
}

Tensor tensor(const std::string& name, std::vector<int64_t> shape, Type type, const std::string& bytes) {
  return {name, std::move(shape), type, [bytes](const Sink& sink) { sink(bytes.data(), static_cast<int64_t>(bytes.size())); }};
}

TEST_F(GgufTest, a_file_is_what_the_format_says_byte_for_byte) {
  const std::string six(24, 'a'), two(4, 'b');
  const auto path = folder_ / "x.gguf";
  write_file(path,
             {{"a.text", "word"},
              {"a.count", uint32_t{7}},
              {"a.flag", true},
              {"a.list", std::vector<std::string>{"x", "yz"}},
              {"a.flags", std::vector<bool>{true, false}}},
             {tensor("t", {2, 3}, Type::fp32, six), tensor("u", {2}, Type::bf16, two)});
  const std::string head = "GGUF" + number(3, 4) + number(2, 8) + number(5, 8) +  //
                           text("a.text") + number(8, 4) + text("word") +         //
                           text("a.count") + number(4, 4) + number(7, 4) +        //
                           text("a.flag") + number(7, 4) + number(1, 1) +         //
                           text("a.list") + number(9, 4) + number(8, 4) + number(2, 8) + text("x") + text("yz") + text("a.flags") +
                           number(9, 4) + number(7, 4) + number(2, 8) + number(1, 1) + number(0, 1) + text("t") + number(2, 4) +
                           number(3, 8) + number(2, 8) + number(0, 4) + number(0, 8) + text("u") + number(1, 4) + number(2, 8) +
                           number(30, 4) + number(32, 8);
  EXPECT_EQ(base::read_file(path), padded(head) + padded(six) + padded(two));
}

TEST_F(GgufTest, what_fails_leaves_nothing) {
  const auto path = folder_ / "x.gguf";
  const auto fails = [](const Sink&) { throw base::NumericError("no"); };
  EXPECT_THROW(write_file(path, {}, {tensor("t", {2}, Type::fp32, "12345678"), {"u", {2}, Type::fp32, fails}}), base::NumericError);
  EXPECT_THROW(write_file(path, {}, {tensor("t", {2}, Type::fp32, "123")}), base::ModelError);
  EXPECT_THROW(write_file(path, {}, {tensor("t", {33}, Type::q8_0, "")}), base::ModelError);
  EXPECT_THROW(write_file(path, {}, {tensor("t", {1}, Type::fp32, "1234"), tensor("t", {1}, Type::fp32, "1234")}), base::ModelError);
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(GgufTest, no_room_for_all_of_it_leaves_nothing) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 1000, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_THROW(write_file(folder_ / "x.gguf", {}, {tensor("t", {400}, Type::fp32, std::string(1600, 'a'))}), base::FileError);
  EXPECT_TRUE(fs::is_empty(folder_));
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, old);
}

TEST(GgufEncoding, q8_0_keeps_each_element_within_half_a_step) {
  std::vector<float> values;
  for (int i = 0; i < 96; ++i) values.push_back(i < 32 ? 0.0F : std::sin(static_cast<float>(i)) * (i < 64 ? 1e-3F : 50.0F));
  const auto bytes = encode_q8_0(values.data(), 96);
  ASSERT_EQ(bytes.size(), 3U * 34);
  for (size_t block = 0; block < 3; ++block) {
    c10::Half scale;
    std::memcpy(&scale.x, bytes.data() + block * 34, 2);
    for (size_t i = 0; i < 32; ++i) {
      const auto q = static_cast<int8_t>(bytes[block * 34 + 2 + i]);
      EXPECT_NEAR(static_cast<float>(q) * static_cast<float>(scale), values[block * 32 + i], 0.57F * static_cast<float>(scale))
          << block << " " << i;
    }
  }
}

TEST(GgufEncoding, what_a_type_cannot_hold_is_named) {
  const auto big = at::full({32}, 1e6, at::kFloat);
  std::string bytes;
  const Sink sink = [&](const void* data, int64_t size) { bytes.append(static_cast<const char*>(data), static_cast<size_t>(size)); };
  try {
    encode(big, Type::fp16, "blk.0.ffn_up.weight", sink);
    FAIL();
  } catch (const base::NumericError& wrong) {
    EXPECT_THAT(wrong.what(), testing::AllOf(HasSubstr("blk.0.ffn_up.weight"), HasSubstr("bf16")));
  }
  EXPECT_NO_THROW(encode(big, Type::bf16, "x", sink));
  EXPECT_EQ(bytes.size(), 64U);
}

}  // namespace
}  // namespace ingot::gguf
