#include "interchange/pickle.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "interchange/test_support.h"
#include "interchange/torch_save.h"

namespace ingot::interchange {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

std::string from_hex(std::string_view hex) {
  std::string out;
  for (size_t i = 0; i < hex.size(); i += 2) out += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  return out;
}

std::string error_of(const std::string& bytes) {
  try {
    const Pickle pickle(bytes, "file");
    return "";
  } catch (const base::CheckpointError& error) {
    return error.what();
  }
}

// What Python 3.11 writes for {"a": [1, -2, 300, 70000, -70000, 2**40, -2**63, 2**80, -1.5, None, True, False, "é"],
// "t": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)), 3: b"\x00\xff", "s": {7}, "f": frozenset([8])} in protocols 2 to 5.
constexpr const char* kProtocols[] = {
    "80027d71002858010000006171015d7102284b014afeffffff4d2c014a701101004a90eefeff8a060000000000018a0800000000000000808a0b000000000000000000"
    "000147bff80000000000004e88895802000000c3a9710365580100000074710428294b018571054b014b028671064b014b024b03877107284b014b024b034b04747108"
    "7471094b03635f636f646563730a656e636f64650a710a580300000000c3bf710b58060000006c6174696e31710c86710d52710e580100000073710f635f5f6275696c"
    "74696e5f5f0a7365740a71105d71114b07618571125271135801000000667114635f5f6275696c74696e5f5f0a66726f7a656e7365740a71155d71164b086185711752"
    "7118752e",
    "80037d71002858010000006171015d7102284b014afeffffff4d2c014a701101004a90eefeff8a060000000000018a0800000000000000808a0b000000000000000000"
    "000147bff80000000000004e88895802000000c3a9710365580100000074710428294b018571054b014b028671064b014b024b03877107284b014b024b034b04747108"
    "7471094b03430200ff710a580100000073710b636275696c74696e730a7365740a710c5d710d4b076185710e52710f5801000000667110636275696c74696e730a6672"
    "6f7a656e7365740a71115d71124b0861857113527114752e",
    "80049590000000000000007d94288c0161945d94284b014afeffffff4d2c014a701101004a90eefeff8a060000000000018a0800000000000000808a0b000000000000"
    "000000000147bff80000000000004e88898c02c3a994658c01749428294b0185944b014b0286944b014b024b038794284b014b024b034b04749474944b03430200ff94"
    "8c0173948f94284b07908c016694284b089194752e",
    "80059590000000000000007d94288c0161945d94284b014afeffffff4d2c014a701101004a90eefeff8a060000000000018a0800000000000000808a0b000000000000"
    "000000000147bff80000000000004e88898c02c3a994658c01749428294b0185944b014b0286944b014b024b038794284b014b024b034b04749474944b03430200ff94"
    "8c0173948f94284b07908c016694284b089194752e"};

TEST(Pickle, values_of_protocols_2_to_5_are_read) {
  for (const char* hex : kProtocols) {
    const Pickle pickle(from_hex(hex), "file");
    const PickleValue root = pickle.root(), list = root.at("a"), tuples = root.at("t");
    ASSERT_EQ(list.size(), 13u);
    const int64_t integers[] = {1, -2, 300, 70000, -70000, int64_t{1} << 40, INT64_MIN};
    for (size_t i = 0; i < 7; ++i) EXPECT_EQ(list[i].integer(), integers[i]);
    EXPECT_EQ(list[7].kind(), PickleKind::large_integer);
    EXPECT_EQ(list[7].bytes(), std::string(10, '\0') + "\x01");
    EXPECT_EQ(list[8].real(), -1.5);
    EXPECT_TRUE(list[9].is_none());
    EXPECT_TRUE(list[10].boolean());
    EXPECT_FALSE(list[11].boolean());
    EXPECT_EQ(list[12].text(), "é");
    ASSERT_EQ(tuples.size(), 5u);
    for (size_t i = 0; i < 5; ++i) {
      ASSERT_EQ(tuples[i].size(), i);
      for (size_t k = 0; k < i; ++k) EXPECT_EQ(tuples[i][k].integer(), static_cast<int64_t>(k + 1));
    }
    EXPECT_EQ(root.pair(2).first.integer(), 3);
    EXPECT_EQ(content_of(root.pair(2).second), std::string("\0\xff", 2));
    EXPECT_FALSE(root.find("absent"));
  }
}

TEST(Pickle, calls_are_kept_as_data_and_never_made) {
  // os.system("touch /tmp/ingot_pickle_was_executed")
  const std::string bytes =
      std::string("\x80\x02") + "cposix\nsystem\n(X\x25" + std::string(3, '\0') + "touch /tmp/ingot_pickle_was_executed!tR.";
  const Pickle pickle(bytes, "file");
  EXPECT_EQ(pickle.root().class_name(), "posix.system");
  EXPECT_EQ(pickle.root().args()[0].text(), "touch /tmp/ingot_pickle_was_executed!");
  EXPECT_FALSE(fs::exists("/tmp/ingot_pickle_was_executed!"));
  // OrderedDict([("k", [1])])
  const Pickle ordered(
      from_hex("8004952c000000000000008c0b636f6c6c656374696f6e73948c0b4f726465726564446963749493942952948c016b945d944b0161732e"), "file");
  EXPECT_EQ(ordered.root().class_name(), "collections.OrderedDict");
  EXPECT_EQ(ordered.root().at("k")[0].integer(), 1);
  EXPECT_EQ(to_json(ordered.root()), json::parse(R"({"!class": "collections.OrderedDict", "items": {"k": [1]}})"));
}

TEST(Pickle, wrong_pickles_are_refused_with_file_and_byte) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "file, byte 0: 1 bytes should follow, but there are 0"},
      {"\x80\x07N.", "protocol 7 is not one of 2 to 5"},
      {"\x80\x02I1\n.", "file, byte 2: the opcode 0x49 is not one that is read"},
      {"\x80\x02NN.", "more or less than one value"},
      {"\x80\x02.", "more or less than one value"},
      {"\x80\x02(N.", "more or less than one value"},
      {"\x80\x02N.N", "1 bytes follow the end"},
      {"\x80\x02h\x05.", "recalled that was not remembered"},
      {"\x80\x02X\xff\xff\xff\x7f.", "2147483647 bytes should follow, but there are 1"},
      {std::string("\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff.", 11), "should follow"},
      {std::string("\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7fN.", 12), "a frame is longer than the file"},
      {std::string("\x80\x02Nr\xff\xff\xff\xff.", 8), "impossible number"},
      {"\x80\x02]R.", "too few values"},
      {"\x80\x02(]N", "should follow"},
      {"\x80\x02Na.", "too few values"},
      {"\x80\x02NNa.", "appended to what is no list"},
      {"\x80\x02}(Nu.", "a key has no value"},
      {"\x80\x02N}b.", "a state is set of what has none"},
      {"\x80\x02]e.", "there is no mark"},
      {"\x80\x02NN\x93.", "not made of texts"},
      {"\x80\x02NNR.", "not a tuple"},
      {"\x80\x02"
       "cmodule",
       "a line has no end"},
      {"\x80\x02](0e.", "there is no mark"},
  };
  for (const auto& [bytes, words] : cases) {
    const std::string error = error_of(bytes);
    EXPECT_THAT(error, HasSubstr(words));
    EXPECT_THAT(error, HasSubstr("file"));
  }
}

TEST(Pickle, depth_costs_no_stack_and_shared_parts_no_memory) {
  // A tuple within a tuple, two million deep.
  const std::string deep = "\x80\x02N" + std::string(2'000'000, '\x85') + ".";
  const Pickle pickle(deep, "file");
  EXPECT_THAT(to_json(pickle.root()).dump(), HasSubstr("nested too deeply"));
  // Forty lists, each of which holds the one before ten times: 10^40 values.
  std::string wide = "\x80\x02N";
  for (int i = 0; i < 40; ++i)
    wide += "q" + std::string(1, '\0') + "0](" + [] {
      std::string out;
      for (int k = 0; k < 10; ++k) out += std::string("h\0", 2);
      return out;
    }() + "e";
  const Pickle shared(wide + ".", "file");
  EXPECT_THROW(to_json(shared.root()), base::CheckpointError);
  // A list that holds itself.
  const Pickle cycle(std::string("\x80\x02]q\0h\0a.", 9), "file");
  EXPECT_THAT(to_json(cycle.root()).dump(), HasSubstr("nested too deeply"));
}

TEST(Pickle, damaged_pickles_give_an_error_or_values_and_little_memory) {
  std::mt19937_64 random(3);
  std::vector<std::string> whole;
  for (const char* hex : kProtocols) whole.push_back(from_hex(hex));
  for (const char* name : {"single", "two_ranks", "megatron"}) whole.push_back(base::read_file(kFixtures / name / ".metadata"));
  int refused = 0, read = 0;
  const auto attempt = [&](const std::string& bytes) {
    MemoryPeak::reset();
    try {
      const Pickle pickle(bytes, "file");
      to_json(pickle.root()).dump(-1, ' ', false, json::error_handler_t::replace);
      ++read;
    } catch (const base::CheckpointError& error) {
      ++refused;
      EXPECT_THAT(error.what(), HasSubstr("file, byte "));
    }
    EXPECT_LT(MemoryPeak::bytes(), (1 << 20) * 64 + 4000 * static_cast<int64_t>(bytes.size()));
  };
  for (const std::string& bytes : whole) {
    for (size_t size = 0; size < bytes.size(); size += 1 + bytes.size() / 2000) attempt(bytes.substr(0, size));
    for (int i = 0; i < 1500; ++i) attempt(damaged(bytes, random));
  }
  EXPECT_GT(refused, 4000);
  EXPECT_GT(read, 100);
}

TEST(Pickle, what_is_written_is_read_back) {
  PickleWriter writer;
  std::string all(256, '\0');
  for (size_t i = 0; i < 256; ++i) all[i] = static_cast<char>(i);
  writer.empty_dict().mark();
  writer.text("integers").integers({0, 255, 256, -1, INT32_MAX, int64_t{INT32_MAX} + 1, INT32_MIN, INT64_MIN, INT64_MAX});
  writer.text("bytes").bytes(all);
  writer.text("list").empty_list().mark().none().boolean(true).boolean(false).shared_text("again").shared_text("again").append_all();
  for (int i = 0; i < 300; ++i) writer.shared_text("name " + std::to_string(i)).global("module", "name" + std::to_string(i));
  writer.text("object").global("module", "name299").empty_tuple().new_object().empty_dict().mark().text("x").integer(1).set_all().build();
  writer.text("id").text("key").persistent();
  const Pickle pickle(writer.set_all().finish(), "memory");
  const PickleValue root = pickle.root();
  EXPECT_EQ(to_json(root.at("integers")), json({0, 255, 256, -1, INT32_MAX, int64_t{INT32_MAX} + 1, INT32_MIN, INT64_MIN, INT64_MAX}));
  EXPECT_EQ(content_of(root.at("bytes")), all);
  EXPECT_EQ(to_json(root.at("list")), json::parse(R"([null, true, false, "again", "again"])"));
  EXPECT_EQ(root.at("name 299").class_name(), "module.name299");
  EXPECT_EQ(to_json(root.at("object")), json::parse(R"({"!class": "module.name299", "state": {"x": 1}})"));
  EXPECT_EQ(root.at("id").id().text(), "key");
}

}  // namespace
}  // namespace ingot::interchange
