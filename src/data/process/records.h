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
 public:
  /// Keeps at most about `memory_bytes` in memory. Files are named `name`.0, .1, … in the folder, and go with the sorter.
  Sorter(base::fs::path folder, std::string name, int64_t memory_bytes)
      : folder_(std::move(folder)),
        name_(std::move(name)),
        most_(static_cast<size_t>(std::max<int64_t>(1024, memory_bytes / static_cast<int64_t>(sizeof(Item))))) {}
  Sorter(const Sorter&) = delete;
  ~Sorter() {
    std::error_code ignored;
    for (size_t i = 0; i < runs_; ++i) base::fs::remove(path_of(i), ignored);
  }

  void add(const Item& item) {
    if (items_.size() == most_) spill();
    items_.push_back(item);
    ++count_;
  }
  int64_t count() const { return count_; }

  /// Hands out all of them in order, once; none can be added then.
  class Reader {
   public:
    explicit Reader(Sorter& sorter) : sorter_(sorter) {
      std::sort(sorter.items_.begin(), sorter.items_.end());
      for (size_t i = 0; i < sorter.runs_; ++i)
        runs_.emplace_back(sorter.path_of(i), std::max<size_t>(64, sorter.most_ / (sorter.runs_ + 1) / 2));
      for (size_t i = 0; i < runs_.size(); ++i) push(i);
    }
    bool next(Item& item) {
      const bool has_own = at_ < sorter_.items_.size();
      if (heads_.empty() || (has_own && sorter_.items_[at_] < heads_.top().item)) {
        if (!has_own) return false;
        item = sorter_.items_[at_++];
        return true;
      }
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
      Run(const base::fs::path& from, size_t at_once) : path(from), file(from, std::ios::binary), buffer(at_once) {}
      base::fs::path path;
      std::ifstream file;
      std::vector<Item> buffer;
      size_t at = 0, size = 0;
      bool next(Item& item) {
        if (at == size) {
          file.read(reinterpret_cast<char*>(buffer.data()), static_cast<std::streamsize>(buffer.size() * sizeof(Item)));
          if (file.bad()) throw base::FileError("cannot read {}: {}", path.string(), std::strerror(errno));
          at = 0, size = static_cast<size_t>(file.gcount()) / sizeof(Item);
          if (size == 0) return false;
        }
        item = buffer[at++];
        return true;
      }
    };
    void push(size_t run) {
      Item item;
      if (runs_[run].next(item)) heads_.push({item, run});
    }
    Sorter& sorter_;
    std::vector<Run> runs_;
    std::priority_queue<Head> heads_;
    size_t at_ = 0;
  };

 private:
  base::fs::path path_of(size_t run) const { return folder_ / (name_ + "." + std::to_string(run)); }
  void spill() {
    std::sort(items_.begin(), items_.end());
    base::OutputFile file(path_of(runs_++));
    file.write(items_.data(), static_cast<int64_t>(items_.size() * sizeof(Item)));
    file.close();
    items_.clear();
  }

  base::fs::path folder_;
  std::string name_;
  size_t most_, runs_ = 0;
  int64_t count_ = 0;
  std::vector<Item> items_;
};

using RecordSorter = Sorter<Record>;
using RemovalSorter = Sorter<Removal>;

}  // namespace ingot::data::process
