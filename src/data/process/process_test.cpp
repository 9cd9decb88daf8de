#include "data/process/process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "data/byte_stream.h"
#include "data/process/classifier.h"
#include "data/process/measures.h"
#include "data/process/spool.h"
#include "data/process/steps.h"
#include "data/test_support.h"

namespace ingot::data::process {
namespace {

using Json = nlohmann::ordered_json;
using testing::ElementsAre;
using testing::HasSubstr;

double measured(const std::string& name, const std::string& text) {
  const auto all = all_measures();
  for (size_t i = 0; i < all.size(); ++i)
    if (all[i].name == name) return Measured(text).value_of(i);
  ADD_FAILURE() << "no measure " << name;
  return 0;
}

TEST(Measures, are_what_they_say) {
  const std::string text = "One two three. Four!\n\n- five #six ...\nFive (six)?\n\xE2\x80\xA2 seven\xE2\x80\xA6\nOne two three. Four!";
  EXPECT_EQ(measured("words", text), 16);
  EXPECT_EQ(measured("sentences", text), 6);  // three. Four! ... (six)? three. Four!
  EXPECT_EQ(measured("lines", text), 5);
  EXPECT_EQ(measured("paragraphs", text), 2);
  EXPECT_EQ(measured("bullet_lines", text), 0.4);
  EXPECT_EQ(measured("ellipsis_lines", text), 0.4);
  EXPECT_EQ(measured("punctuated_lines", text), 0.8);  // "..." ends with a full stop, too
  EXPECT_EQ(measured("hashes_per_word", text), 1.0 / 16);
  EXPECT_EQ(measured("ellipses_per_word", text), 2.0 / 16);
  EXPECT_EQ(measured("alphabetic_words", text), 13.0 / 16);  // not "-", "..." and the bullet
  EXPECT_EQ(measured("duplicate_lines", text), 0.2);
  EXPECT_EQ(measured("duplicate_line_characters", text), 20.0 / static_cast<double>(text.size()));
  EXPECT_EQ(measured("mean_word_length", "ab \xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9"), 3);
  EXPECT_EQ(measured("longest_word", "ab \xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9"), 4);
  EXPECT_EQ(measured("stop_words", "The cat AND the dog have to be, with that of"), 7);  // "be," is none
  EXPECT_EQ(measured("short_lines", "short\n" + std::string(31, 'x')), 0.5);
  EXPECT_EQ(measured("top_2gram", "a b a b c"), 6.0 / 9);
  EXPECT_EQ(measured("top_2gram", "a b c d"), 0);
  EXPECT_EQ(measured("top_2gram", "a b\na  b a\nb c"), 9.0 / 14);  // lines that are wrapped elsewhere
  EXPECT_EQ(measured("duplicate_5grams", "a b c d e a b c d e f"), 9.0 / 21);
  EXPECT_EQ(measured("duplicate_5grams", "a b c d e a\nb c\nd e f"), 9.0 / 21);
  for (const char* line : {"So it is.", "So it is.[12]", "So it is!\"[edit][citation needed] ", "So it is.[]"})
    EXPECT_EQ(measured("ends_in_punctuation", line), 1) << line;
  for (const char* line : {"So it is", "So it is...[12]", "So it is [12]", "So it is.[1a]", "]", "[12]"})
    EXPECT_EQ(measured("ends_in_punctuation", line), 0) << line;
  EXPECT_EQ(measured("duplicate_paragraphs", "one\n\ntwo\n \none"), 1.0 / 3);
  EXPECT_EQ(measured("curly_brackets", "{a}"), 2);
  EXPECT_EQ(measured("upper_case", "ABcd1"), 0.5);
  EXPECT_EQ(measured("digits", "12ab"), 0.5);
  EXPECT_EQ(measured("letters", "a1\xE4\xBD\xA0\xE2\x80\xA6"), 0.5);
  for (const auto& measure : all_measures()) EXPECT_EQ(measured(measure.name, ""), 0) << measure.name << " of nothing";
}

TEST(Rules, are_read_and_refused) {
  EXPECT_EQ(rules_of({"words >= 5", "gopher"}).size(), 11u);
  for (const auto& set : rule_sets()) EXPECT_GT(rules_of({set.name}, set.is_of_lines).size(), 1u) << set.name;
  for (const auto& [text, word] : std::vector<std::pair<std::string, std::string>>{{"wrods >= 5", "the nearest is words"},
                                                                                   {"words = 5", "= is no comparison"},
                                                                                   {"words >= five", "five is no number"},
                                                                                   {"words >= nan", "no number"},
                                                                                   {"goopher", "none of the sets gopher"},
                                                                                   {"", "0 parts"}})
    expect_error<base::ConfigError>([&, rule = text] { rules_of({rule}); }, {word});
}

TEST(Sorter, gives_back_what_it_was_given_in_order) {
  const TemporaryFolder folder;
  std::mt19937_64 random(1);
  for (const size_t count : {0, 1, 1023, 1024, 1025, 20000}) {
    std::vector<Record> expected;
    {
      RecordSorter sorter(folder.path(), "r", 0);  // 1024 in memory
      for (size_t i = 0; i < count; ++i) {
        const Record record{{random() % 50, random() % 3}, {static_cast<int64_t>(random() % 100), static_cast<int32_t>(random() % 2)}};
        expected.push_back(record);
        sorter.add(record);
      }
      std::sort(expected.begin(), expected.end());
      RecordSorter::Reader reader(sorter);
      size_t at = 0;
      for (Record record; reader.next(record); ++at) {
        ASSERT_LT(at, count);
        ASSERT_TRUE(record.same_key(expected[at]) && record.place == expected[at].place) << at << " of " << count;
      }
      EXPECT_EQ(at, count);
    }
    EXPECT_TRUE(base::fs::is_empty(folder.path())) << "its files are gone";
  }
}

class Process : public testing::Test {
 protected:
  // Documents as JSON lines in two files.
  void input(const std::vector<std::string>& texts) {
    std::string files[2];
    for (size_t i = 0; i < texts.size(); ++i) files[i * 2 / texts.size()] += Json{{"id", i}, {"text", texts[i]}}.dump() + "\n";
    folder.write("a.jsonl", files[0]);
    folder.write("b.jsonl", files[1]);
  }
  Recipe recipe(std::vector<StepConfig> steps) {
    Recipe made;
    made.sources = {{.name = "a", .files = {(folder / "a.jsonl").string()}}, {.name = "b", .files = {(folder / "b.jsonl").string()}}};
    made.steps = std::move(steps);
    for (auto& step : made.steps)
      if (step.name.empty()) step.name = step.kind;
    made.folder = (folder / ("out" + std::to_string(runs++))).string();
    made.memory_mib = 0;  // as little as there is
    return made;
  }
  ProcessResult run(const Recipe& made, int threads = 2) { return process::process(made, {.threads = threads, .progress = {}}); }
  std::vector<Json> lines_of(const Recipe& made, const ProcessResult& result) {
    std::vector<Json> lines;
    for (const auto& file : result.files) {
      const auto bytes = open_bytes(base::fs::path(made.folder) / file);
      std::string text(1 << 24, '\0');
      text.resize(bytes->read(text.data(), text.size()));
      for (size_t at = 0; at < text.size();) {
        const size_t end = text.find('\n', at);
        lines.push_back(Json::parse(text.substr(at, end - at)));
        at = end + 1;
      }
    }
    return lines;
  }
  std::vector<int> ids_after(const std::vector<StepConfig>& steps) {
    const auto made = recipe(steps);
    last = run(made);
    std::vector<int> ids;
    for (const auto& line : lines_of(made, last)) ids.push_back(line["id"].get<int>());
    return ids;
  }
  TemporaryFolder folder;
  ProcessResult last;
  int runs = 0;
};

TEST_F(Process, of_equal_documents_the_first_stays) {
  input({"one", "two", "one", "three", " one", "two", ""});
  EXPECT_THAT(ids_after({{.kind = "duplicates"}}), ElementsAre(0, 1, 3, 4));
  const auto& tally = last.steps.front().tally;
  EXPECT_EQ(tally.removed.at("duplicate").documents, 2);
  EXPECT_EQ(tally.documents, 6);
  EXPECT_EQ(last.empty_documents, 1);
  EXPECT_EQ(last.sources[0].documents + last.sources[1].documents, 6);
}

TEST_F(Process, of_equal_paragraphs_and_lines_the_first_stays) {
  input({"a\n\nb\nb2\n\nc", "x\n\nb\nb2", "b\nb2\n\na", "long enough\na\n"});
  for (const auto* of : {"paragraphs", "lines"}) {
    const auto made = recipe({{.kind = "duplicates", .of = of}});
    const auto result = run(made);
    std::vector<std::string> texts;
    for (const auto& line : lines_of(made, result)) texts.push_back(line["text"]);
    if (of == std::string("paragraphs")) EXPECT_THAT(texts, ElementsAre("a\n\nb\nb2\n\nc", "x\n\n", "long enough\na\n"));
    else EXPECT_THAT(texts, ElementsAre("a\n\nb\nb2\n\nc", "x\n\n", "long enough\n"));
    EXPECT_EQ(result.steps[0].tally.removed.begin()->first, std::string("all ") + of + " are duplicates");
  }
  EXPECT_EQ(ids_after({{.kind = "duplicates", .of = "lines", .least_characters = 3}}).size(), 4u);
}

// Against one pass over all texts in memory, for random texts of few words.
TEST_F(Process, duplicates_are_those_of_a_simple_search) {
  std::mt19937_64 random(3);
  std::vector<std::string> texts;
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (uint64_t words = 1 + random() % 3; words > 0; --words) text += "w" + std::to_string(random() % 12) + " ";
    texts.push_back(text);
  }
  input(texts);
  std::vector<int> expected;
  std::set<std::string> seen;
  for (size_t i = 0; i < texts.size(); ++i)
    if (seen.insert(texts[i]).second) expected.push_back(static_cast<int>(i));
  EXPECT_EQ(ids_after({{.kind = "duplicates"}}), expected);
  EXPECT_EQ(ids_after({{.kind = "duplicates"}, {.kind = "duplicates", .name = "again"}}), expected);
}

// More removals than fit into memory, in two searches: what the second one found took the first one's files away.
TEST_F(Process, two_searches_with_more_than_memory_holds_are_whole) {
  std::vector<std::string> texts;
  for (int i = 0; i < 2400; ++i)
    for (int twice = 0; twice < 2; ++twice) texts.push_back("own line " + std::to_string(i) + "\ncommon");
  input(texts);
  const auto made = recipe({{.kind = "duplicates"}, {.kind = "duplicates", .name = "lines", .of = "lines"}});
  const auto result = run(made);
  EXPECT_EQ(result.steps[0].tally.removed.at("duplicate").documents, 2400);
  EXPECT_EQ(result.steps[1].tally.counts.at("duplicate lines"), 2399);
  const auto lines = lines_of(made, result);
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(),
                          [](const Json& line) { return line["text"].get<std::string>().find("common") != std::string::npos; }),
            1);
}

TEST_F(Process, the_same_bytes_come_out_with_any_number_of_threads) {
  std::mt19937_64 random(4);
  std::vector<std::string> texts;
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (uint64_t words = 20 + random() % 100; words > 0; --words)
      text += "w" + std::to_string(random() % 300) + (random() % 9 == 0 ? ".\n" : " ");
    texts.push_back(random() % 5 == 0 && i > 0 ? texts[random() % static_cast<uint64_t>(i)] + " more" : text);
  }
  input(texts);
  std::map<int, std::pair<std::string, Json>> found;
  for (const int threads : {1, 3}) {
    const auto made =
        recipe({{.kind = "near_duplicates"}, {.kind = "rules", .keep = {"words >= 30"}}, {.kind = "duplicates", .of = "lines"}});
    const auto result = run(made, threads);
    std::string bytes;
    for (const auto& file : result.files) bytes += content_of(base::fs::path(made.folder) / file);
    found[threads] = {bytes, to_json(result)};
    EXPECT_GT(result.steps[0].tally.removed.at("near duplicate").documents, 2000);
  }
  EXPECT_TRUE(found[1].first == found[3].first);
  EXPECT_EQ(found[1].second, found[3].second);
}

// Pairs whose runs of five words overlap by a known share.
TEST_F(Process, near_duplicates_are_found_as_often_as_their_bands_say) {
  std::mt19937_64 random(5);
  const auto words = [&](int count) {
    std::vector<std::string> text;
    for (int i = 0; i < count; ++i) text.push_back("w" + std::to_string(random() % 1000000));
    return text;
  };
  const auto joined = [](const std::vector<std::string>& parts) {
    std::string text;
    for (const auto& part : parts) text += part + " ";
    return text;
  };
  constexpr int kPairs = 300;
  for (const auto& [fresh, least, most] : std::vector<std::tuple<int, double, double>>{{15, 0.97, 1}, {60, 0.2, 0.9}, {300, 0, 0.02}}) {
    std::vector<std::string> texts;
    for (int i = 0; i < kPairs; ++i) {
      const auto one = words(400);
      auto other = std::vector<std::string>(one.begin(), one.end() - fresh);
      const auto end = words(fresh);
      other.insert(other.end(), end.begin(), end.end());
      texts.push_back(joined(one));
      texts.push_back(joined(other));
    }
    input(texts);
    const auto ids = ids_after({{.kind = "near_duplicates"}});
    const double share = 1 - (static_cast<double>(ids.size()) - kPairs) / kPairs;
    EXPECT_GE(share, least) << fresh;
    EXPECT_LE(share, most) << fresh;
    EXPECT_EQ(std::count_if(ids.begin(), ids.end(), [](int id) { return id % 2 == 0; }), kPairs) << "the first of each stays";
  }
}

TEST_F(Process, case_and_punctuation_do_not_make_documents_different) {
  input({"The quick brown fox jumps over the lazy dog's bowl today.",
         "the QUICK brown\xC2\xA0"
         "fox, jumps \xE2\x80\x94 over the lazy dog\xE2\x80\x99s bowl today",
         "something else"});
  EXPECT_THAT(ids_after({{.kind = "near_duplicates"}}), ElementsAre(0, 2));
}

TEST_F(Process, documents_with_text_of_evaluations_go) {
  const std::string question = "Which of these thirteen words in a row would nobody write by chance alone today or tomorrow";
  folder.write("eval.jsonl",
               Json{{"question", question}, {"choices", {"an answer of exactly eight words and no more", "short"}}}.dump() + "\n");
  input({"before it: which of THESE thirteen words, in a row, would nobody write by chance alone and after it",
         "which of these thirteen words in a row would nobody", "an answer of exactly eight words and no more is here", "short"});
  StepConfig step{.kind = "contamination"};
  step.files = {(folder / "eval.jsonl").string()};
  step.field = "question, choices";
  EXPECT_THAT(ids_after({step}), ElementsAre(1, 3));
  EXPECT_EQ(last.steps[0].tally.removed.at("text of eval.jsonl").documents, 2);
  step.overlap = 0.9;
  EXPECT_THAT(ids_after({step}), ElementsAre(0, 1, 2, 3));
  step.overlap = 0.6;
  EXPECT_THAT(ids_after({step}), ElementsAre(1, 3)) << "of the words of both most lie in such runs";
  step.files = {(folder / "a.jsonl").string()};
  step.field = "no_such_member";
  expect_error<base::DataError>([&] { ids_after({step}); }, {"there is no text in"});
}

TEST_F(Process, personal_data_is_masked) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"mail a.b+c@mail.example.org.", "mail <EMAIL>."},
      {"not@a, a@b, @home", "not@a, a@b, @home"},
      {"from 93.184.216.34 to 192.168.1.1", "from <IP> to 192.168.1.1"},
      {"version 1.2.3.4.5 and 999.1.1.1", "version 1.2.3.4.5 and 999.1.1.1"},
      {"card 4111 1111 1111 1111, not 4111 1111 1111 1112", "card <CARD>, not 4111 1111 1111 1112"},
      {"DE89 3704 0044 0532 0130 00 and GB82WEST12345698765432", "<IBAN> and <IBAN>"},
      {"DE88 3704 0044 0532 0130 00", "DE88 3704 0044 0532 0130 00"},
      {"call +49 30 1234567 or (212) 555-0142", "call <PHONE> or <PHONE>"},
      {"1-800-555-0199, 212-555-0142", "<PHONE>, <PHONE>"},
      {"clone git@host.example.com:a/b.git", "clone git@host.example.com:a/b.git"},
      {"4111 1111 1111 1111 12/27", "<CARD> 12/27"},
      {"BE68 5390 0754 7034 BIC GEBABEBB", "<IBAN> BIC GEBABEBB"},
      {"in 1999-2003, page 12-345", "in 1999-2003, page 12-345"},
  };
  std::vector<std::string> texts;
  for (const auto& [text, masked] : cases) texts.push_back(text);
  input(texts);
  const auto made = recipe({{.kind = "personal_data"}});
  const auto result = run(made);
  const auto lines = lines_of(made, result);
  for (size_t i = 0; i < cases.size(); ++i) EXPECT_EQ(lines[i]["text"], cases[i].second);
  EXPECT_EQ(result.steps[0].tally.counts.at("masked: email"), 1);
  folder.write("a.jsonl", R"({"text": "x", "meta": {"by": ["a@b.example.org"]}})"
                          "\n");
  const auto other = recipe({{.kind = "personal_data"}});
  EXPECT_EQ(lines_of(other, run(other))[0]["meta"].dump(), R"({"by":["<EMAIL>"]})") << "in other members, too";
  input(texts);
  StepConfig mail{.kind = "personal_data"};
  mail.mask = {"email"};
  const auto of_mail = recipe({mail});
  EXPECT_EQ(lines_of(of_mail, run(of_mail))[2]["text"], cases[2].first);
}

// Two kinds of sentences with words in common, and some of their own.
std::vector<std::string> sentences(const std::vector<std::string>& own, int count, uint64_t seed) {
  std::mt19937_64 random(seed);
  const std::vector<std::string> common = {"the", "a", "of", "and", "house", "tree", "river", "walks", "sees", "again"};
  std::vector<std::string> all;
  for (int i = 0; i < count; ++i) {
    std::string text;
    for (int word = 0; word < 30; ++word) text += (random() % 5 == 0 ? own[random() % own.size()] : common[random() % common.size()]) + " ";
    all.push_back(text);
  }
  return all;
}

TEST_F(Process, a_classifier_tells_two_heaps_apart) {
  const auto good = sentences({"theorem", "lemma", "proof", "hence"}, 400, 1), bad = sentences({"click", "buy", "offer", "free"}, 600, 2);
  ClassifierResult result, again;
  const auto classifier = train_classifier(good, bad, {}, result);
  EXPECT_EQ(result.positive + result.negative + result.held_out, 1000);
  EXPECT_NEAR(static_cast<double>(result.held_out), 100, 40);
  EXPECT_GT(result.accuracy, 0.98);
  EXPECT_GT(result.auc, 0.995);
  EXPECT_EQ(train_classifier(good, bad, {}, again).score(good[0]), classifier.score(good[0]));
  const auto path = folder / "quality.classifier";
  classifier.save(path);
  EXPECT_EQ(Classifier::load(path).score(bad[3]), classifier.score(bad[3]));
  input({"the proof of the lemma and hence the theorem", "click and buy the free offer", "a theorem of a river and a proof"});
  StepConfig step{.kind = "classifier"};
  step.model = path.string();
  EXPECT_THAT(ids_after({step}), ElementsAre(0, 2));
  EXPECT_EQ(last.steps[0].tally.removed.at("score below 0.5").documents, 1);

  const auto whole = content_of(path);
  for (const auto& [content, word] :
       std::vector<std::pair<std::string, std::string>>{{"nothing", "is no classifier"},
                                                        {whole.substr(0, 1000), "is damaged"},
                                                        {whole.substr(0, 5000) + "x" + whole.substr(5001), "digest"}})
    expect_error<base::DataError>([&] { Classifier::load(folder.write("broken", content)); }, {word});
  // Heaps that are the same cannot be told apart.
  train_classifier(sentences({"x"}, 500, 3), sentences({"x"}, 500, 4), {}, again = {});
  EXPECT_NEAR(again.auc, 0.5, 0.15);
  expect_error<base::DataError>([&] { train_classifier({}, bad, {}, again); }, {"first kind"});
}

TEST_F(Process, documents_of_other_languages_go) {
  input({"The house at the end of the street has been empty since the old man who lived there moved away to the coast.",
         "Das Haus am Ende der Stra\xC3\x9F"
         "e steht leer, seit der alte Mann, der dort gewohnt hat, an die K\xC3\xBCste gezogen ist.",
         "La maison au bout de la rue est vide depuis que le vieil homme qui y habitait est parti vivre au bord de la mer.",
         "1 2 3 4 5 6 7 8 9"});
  StepConfig step{.kind = "language"};
  step.languages = {"en", "fr"};
  EXPECT_THAT(ids_after({step}), ElementsAre(0, 2));
  EXPECT_EQ(last.steps[0].tally.removed.at("de").documents, 1);
  EXPECT_EQ(last.steps[0].tally.removed.at("unknown").documents, 1);
  input(
      {"\xD7\x94\xD7\x91\xD7\x99\xD7\xAA \xD7\xA9\xD7\x91\xD7\xA7\xD7\xA6\xD7\x94 \xD7\x94\xD7\xA8\xD7\x97\xD7\x95\xD7\x91 "
       "\xD7\xA8\xD7\x99\xD7\xA7 \xD7\x9E\xD7\x90\xD7\x96 "
       "\xD7\xA9\xD7\x94\xD7\x90\xD7\x99\xD7\xA9 \xD7\x94\xD7\x96\xD7\xA7\xD7\x9F \xD7\xA2\xD7\x91\xD7\xA8 "
       "\xD7\x9C\xD7\x97\xD7\x95\xD7\xA3 \xD7\x94\xD7\x99\xD7\x9D",
       "one"});
  step.languages = {"he"};
  EXPECT_THAT(ids_after({step}), ElementsAre(0)) << "its code was another one before";
  step.languages = {"xx"};
  expect_error<base::ConfigError>([&] { ids_after({step}); }, {"no language has the code \"xx\""});
}

TEST_F(Process, lines_are_kept_by_rules_and_members_stay) {
  folder.write("a.jsonl", R"({"url": "u", "text": "A line of five words.\nno end\nUse cookies to read this line.\n", "n": [1, 2]})"
                          "\n");
  folder.write("b.jsonl", R"({"text": "nothing"})"
                          "\n");
  const auto made = recipe({{.kind = "lines", .keep = {"c4_lines"}}});
  const auto result = run(made);
  const auto lines = lines_of(made, result);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].dump(), R"({"text":"A line of five words.\n","url":"u","n":[1,2]})");
  folder.write("a.jsonl", R"({"text": "the title", "body": "the text"})"
                          "\n");
  auto of_body = recipe({});
  of_body.sources = {{.files = {(folder / "a.jsonl").string()}, .field = "body"}};
  EXPECT_EQ(lines_of(of_body, run(of_body))[0].dump(), R"({"text":"the text","text_besides":"the title"})");
  EXPECT_EQ(result.steps[0].tally.removed.at("no line is left").documents, 1);
}

TEST_F(Process, plain_text_and_parts_of_any_size_come_whole) {
  const std::string large = std::string(3 << 20, 'a') + "\n\nend";
  Recipe made = recipe({});
  made.sources = {{.files = {folder.write("large.txt", large).string(), folder.write("small.txt", "small").string()}}};
  made.shard_mib = 1;
  const auto result = run(made);
  const auto lines = lines_of(made, result);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["text"], large);
  EXPECT_EQ(result.files.size(), 2u);
}

// However many threads: documents of 32 MiB were all in memory at once, and a few times each.
TEST_F(Process, large_documents_do_not_fill_the_memory) {
  {
    std::ofstream lines(folder / "a.jsonl.zst", std::ios::binary);
    for (char letter = 'a'; letter < 'i'; ++letter) {
      std::string line = R"({"text": ")";
      line.append(32 << 20, letter).append("\"}\n");
      lines << compressed(line, /*level=*/1);
    }
  }
  const auto before = peak_bytes();
  auto made = recipe({{.kind = "duplicates"}});
  made.sources = {{.files = {(folder / "a.jsonl.zst").string()}}};
  EXPECT_EQ(run(made, 12).steps[0].tally.kept_documents, 8);
  EXPECT_LT(peak_bytes() - before, int64_t{900} << 20);  // 128 MiB are in flight
}

TEST_F(Process, nothing_appears_where_something_is_wrong) {
  const std::string good = R"({"text": "good"})"
                           "\n",
                    deep = R"({"text": "x", "deep": )" + std::string(1000000, '[') + std::string(1000000, ']') + "}\n";
  folder.write("b.jsonl", good);
  for (const auto& [line, word] : std::vector<std::pair<std::string, std::string>>{{"{\"text\": 1}", "is no text"},
                                                                                   {"{\"txt\": \"a\"}", "has no \"text\""},
                                                                                   {"[1]", "no JSON object"},
                                                                                   {"{", "no JSON"},
                                                                                   {"{\"text\": \"\\ud800\"}", "no JSON"},
                                                                                   {deep, "nested deeper"}}) {
    folder.write("a.jsonl", good + line + "\n");
    auto made = recipe({});
    expect_error<base::DataError>([&] { run(made); }, {"a.jsonl:2", word});
    EXPECT_FALSE(base::fs::exists(base::fs::path(made.folder) / "part-00000.jsonl.zst"));
    EXPECT_FALSE(base::fs::exists(base::fs::path(made.folder) / ".work"));
    made.skip_bad = true;
    const auto result = run(made);
    EXPECT_EQ(result.bad_lines, 1);
    EXPECT_EQ(lines_of(made, result).size(), 2u);
    expect_error<base::UsageError>([&] { run(made); }, {"is there already"});
  }
  input({"short"});
  expect_error<base::DataError>([&] { run(recipe({{.kind = "rules", .keep = {"words >= 2"}}})); },
                                {"no document is left", "rules removed the last 1, most of them because \"not words >= 2\""});
}

TEST_F(Process, recipes_say_what_is_wrong_with_them) {
  input({"one", "two"});
  const std::string head = "folder = \"out\"\n[[sources]]\nfiles = [\"*.jsonl\"]\n";
  const auto load = [&](const std::string& text) { return load_recipe(folder.write("r.toml", text)); };
  const auto read = load(head + "[[steps]]\nkind = \"duplicates\"\n[[steps]]\nkind = \"duplicates\"\nof = \"lines\"\n");
  EXPECT_EQ(read.sources[0].files.size(), 2u);
  EXPECT_EQ(read.steps[1].name, "duplicates 2");
  EXPECT_EQ(read.folder, (folder / "out").string());
  expect_error<base::ConfigError>([&] { load("folder = \"out\"\n"); }, {"[[sources]]"});
  expect_error<base::ConfigError>([&] { load(head + "[[steps]]\nkind = \"magic\"\n"); }, {"magic"});
  expect_error<base::ConfigError>([&] { load(head + "[[steps]]\n"); }, {"step 1 has no kind"});
  expect_error<base::ConfigError>([&] { load(head + "[[steps]]\nkind = \"rules\"\nkep = []\n"); }, {"kep"});
  expect_error<base::FileError>([&] { load("folder = \"out\"\n[[sources]]\nfiles = [\"none*\"]\n"); }, {"no file is named as"});
  for (const auto& [step, word] :
       std::vector<std::pair<std::string, std::string>>{{"kind = \"rules\"", "keep is empty"},
                                                        {"kind = \"rules\"\nbands = 3", "bands is no setting of rules"},
                                                        {"kind = \"contamination\"", "files is empty"},
                                                        {"kind = \"lines\"\nkeep = [\"gopher\"]", "a step of kind \"rules\""},
                                                        {"kind = \"rules\"\nkeep = [\"c4_lines\"]", "a step of kind \"lines\""},
                                                        {"kind = \"personal_data\"\nmask = [\"name\"]", "mask has name"}}) {
    const auto made = load(head + "[[steps]]\n" + step + "\n");
    expect_error<base::ConfigError>([&] { run(made); }, {word});
  }
}

}  // namespace
}  // namespace ingot::data::process
