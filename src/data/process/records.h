// Records of a fixed size, more than fit into memory, sorted: runs are written to files of a work folder and merged. One thread at a time.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <queue>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files.h"

namespace ingot::data::process {

/// A document, and a part of it: paragraph or line, from 0.
struct Place {
  int64_t document = 0;
  int32_t part = 0;
  int32_t unused = 0;
  auto operator<=>(const Place&) const = default;
};

/// Something of a place by which it is compared.
struct Record {
  uint64_t key[2] = {0, 0};
  Place place;
  bool same_key(const Record& other) const { return key[0] == other.key[0] && key[1] == other.key[1]; }
  bool operator<(const Record& other) const {
    if (key[0] != other.key[0]) return key[0] < other.key[0];
    return key[1] != other.key[1] ? key[1] < other.key[1] : place < other.place;
  }
};

/// A place that goes, and the one that is kept of the same.
struct Removal {
  Place place, kept;
  bool operator<(const Removal& other) const { return place != other.place ? place < other.place : kept < other.kept; }
};

template <class Item>
class Sorter {
  // Runs in files, put together.
  class Merge {
   public:
    Merge(const std::vector<base::fs::path>& files, size_t items_in_memory) {
      for (const auto& file : files) runs_.emplace_back(file, std::max<size_t>(64, items_in_memory / (files.size() + 1) / 2));
      for (size_t i = 0; i < runs_.size(); ++i) push(i);
    }
    bool next(Item& item) {
      if (heads_.empty()) return false;
      item = heads_.top().item;
      const size_t run = heads_.top().run;
      heads_.pop();
      push(run);
      return true;
    }

   private:
    struct Head {
      Item item;
      size_t run;
      bool operator<(const Head& other) const { return other.item < item; }  // the smallest on top
    };
    struct Run {
      Run(const base::fs::path& from, size_t at_once) : path(from), file(from, std::ios::binary), buffer(at_once) {
        if (!file.is_open()) throw base::FileError("cannot open {}: {}", path.string(), std::strerror(errno));
      }
      base::fs::path path;
      std::ifstream file;
      std::vector<Item> buffer;
      size_t at = 0, size = 0;
      bool next(Item& item) {
        if (at == size) {
          file.read(reinterpret_cast<char*>(buffer.data()), static_cast<std::streamsize>(buffer.size() * sizeof(Item)));
          const auto bytes = static_cast<size_t>(file.gcount());
          if (file.bad() || bytes % sizeof(Item) != 0) throw base::FileError("cannot read {}: it ends too early", path.string());
          at = 0, size = bytes / sizeof(Item);
          if (size == 0) return false;
        }
        item = buffer[at++];
        return true;
      }
    };
    void push(size_t run) {
      Item item{};
      if (runs_[run].next(item)) heads_.push({item, run});
    }
    std::vector<Run> runs_;
    std::priority_queue<Head> heads_;
  };

 public:
  /// Keeps at most about `memory_bytes` in memory. Files are named `name`.0, .1, … in the folder, and go with the sorter.
  Sorter(base::fs::path folder, std::string name, int64_t memory_bytes)
      : folder_(std::move(folder)),
        name_(std::move(name)),
        most_(static_cast<size_t>(std::max<int64_t>(1024, memory_bytes / static_cast<int64_t>(sizeof(Item))))) {}
  Sorter(const Sorter&) = delete;
  ~Sorter() {
    std::error_code ignored;
    for (const auto& run : runs_) base::fs::remove(run, ignored);
  }

  void add(const Item& item) {
    if (items_.size() == most_) spill();
    items_.push_back(item);
    ++count_;
  }
  int64_t count() const { return count_; }
  /// The most that lay in files.
  int64_t file_bytes() const { return file_bytes_; }

  /// Hands out all of them in order, once; none can be added then.
  class Reader {
   public:
    explicit Reader(Sorter& sorter) : sorter_(sorter), merge_(sorter.runs_, sorter.most_) {
      std::sort(sorter.items_.begin(), sorter.items_.end());
      has_head_ = merge_.next(head_);
    }
    bool next(Item& item) {
      const bool has_own = at_ < sorter_.items_.size();
      if (has_head_ && (!has_own || head_ < sorter_.items_[at_])) {
        item = head_;
        has_head_ = merge_.next(head_);
        return true;
      }
      if (has_own) item = sorter_.items_[at_++];
      return has_own;
    }

   private:
    Sorter& sorter_;
    Merge merge_;
    Item head_{};
    bool has_head_ = false;
    size_t at_ = 0;
  };

 private:
  static constexpr size_t kMostRuns = 256;  // files that are open at the same time

  base::fs::path new_run() { return runs_.emplace_back(folder_ / (name_ + "." + std::to_string(made_++))); }
  void spill() {
    std::sort(items_.begin(), items_.end());
    if (runs_.size() == kMostRuns) merge_runs();
    base::OutputFile file(new_run());
    file.write(items_.data(), static_cast<int64_t>(items_.size() * sizeof(Item)));
    file.close();
    items_.clear();
    file_bytes_ = std::max(file_bytes_, (count_ + 1) * static_cast<int64_t>(sizeof(Item)));
  }
  void merge_runs() {
    auto before = std::exchange(runs_, {});
    {
      Merge merge(before, most_);
      base::OutputFile file(new_run());
      std::vector<Item> block;
      for (Item item; merge.next(item);) {
        block.push_back(item);
        if (block.size() < 4096) continue;
        file.write(block.data(), static_cast<int64_t>(block.size() * sizeof(Item)));
        block.clear();
      }
      file.write(block.data(), static_cast<int64_t>(block.size() * sizeof(Item)));
      file.close();
    }
    file_bytes_ = std::max(file_bytes_, 2 * count_ * static_cast<int64_t>(sizeof(Item)));
    for (const auto& run : before) base::fs::remove(run);
  }

  base::fs::path folder_;
  std::string name_;
  size_t most_, made_ = 0;
  std::vector<base::fs::path> runs_;
  int64_t count_ = 0, file_bytes_ = 0;
  std::vector<Item> items_;
};

using RecordSorter = Sorter<Record>;
using RemovalSorter = Sorter<Removal>;

}  // namespace ingot::data::process
