// What is asked of a model: a task is a TOML or JSON file beside its data (docs/evaluation.md), read and checked before a model is loaded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace ingot::eval {

struct Task {
  std::string name;  // default: that of its file
  std::string kind;  // multiple_choice, loglikelihood, perplexity, generate, code, retrieval
  std::string data;  // JSON lines or Parquet, beside the task's file
  // Fields of a row, or Jinja templates of its fields.
  std::string description, prompt, target, answer, source;
  std::vector<std::string> choices;  // a template for each, or one field that is a list
  std::string delimiter = " ";       // between prompt and target
  // Examples before the question.
  int64_t shots = 0;
  std::string shots_from;  // default: the data, without the row itself
  std::string shot_separator = "\n\n", shot_choice = "random";
  std::vector<std::string> metrics;  // default: all that the kind has
  // perplexity
  std::vector<int64_t> lengths;  // contexts, besides the model's
  // generate and code
  std::vector<std::string> until;
  int64_t most_tokens = 0;  // 0: 256, retrieval: as many as the answer may need
  std::string filter;       // a regular expression, whose first match is the answer
  bool strip = false, ignore_case = false, ignore_punctuation = false;
  double temperature = 0;
  int64_t samples = 1;           // of each problem
  std::vector<int64_t> pass_at;  // k of pass@k
  std::string program;           // a template of what is run: `completion` is what the model wrote
  std::string interpreter;       // of it
  double seconds = 10;           // for a program
  int64_t memory_mib = 512;      // the same
  // retrieval
  std::string retrieval = "needle";
  int64_t questions = 20, needles = 4;  // of each length and depth; multi_needle
  std::vector<double> depths;           // of the needle: 0 the beginning, 1 the end

  std::filesystem::path file;
  std::filesystem::path beside(const std::string& name) const { return file.parent_path() / name; }
};

/// Throws ConfigError or FileError, which name the file, the setting and what it may be.
Task read_task(const std::filesystem::path& file);

/// The metrics that a kind can tell, the first of which stands for it.
std::vector<std::string> metrics_of(const std::string& kind);

/// All settings of a task, a line each.
std::string task_help();

}  // namespace ingot::eval
