#include "report/watch/live_page.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <functional>
#include <optional>

#include "base/error.h"
#include "report/page/document.h"
#include "report/page/html.h"
#include "report/run/page.h"
#include "report/run/run_data.h"
#include "report/sweep/page.h"
#include "report/sweep/results.h"

namespace ingot::report {
namespace {

namespace fs = std::filesystem;

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

// All that a page is made of.
std::vector<fs::path> files_of(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const char* name :
       {"metrics.jsonl", "checkpoints.jsonl", "config.toml", "run.json", "profile.json", "log.txt", "sweep.jsonl", "runs"})
    files.push_back(folder / name);
  std::error_code ignored;
  if (!fs::exists(folder / "sweep.jsonl", ignored)) return files;
  for (fs::directory_iterator run(folder / "runs", ignored), end; !ignored && run != end; run.increment(ignored))
    files.push_back(run->path() / "metrics.jsonl");
  return files;
}

Content content_of(const std::vector<fs::path>& folders) {
  if (folders.size() == 1)
    if (const auto sweep = read_sweep(folders.front())) return content_of(*sweep, folders.front());
  return content_of(read_runs(folders, LastLine::is_being_written));
}

Content content_now(const std::vector<fs::path>& folders) {
  std::vector<fs::path> present;
  std::string missing;
  for (const auto& folder : folders) {
    if (is_folder(folder)) present.push_back(folder);
    else
      missing +=
          fmt::format("<p class=\"verdict\">{} does not exist yet; its run appears here when it begins.</p>\n", escape(folder.string()));
  }
  if (present.empty()) return {"waiting for " + folders.front().filename().string(), missing};
  try {
    auto content = content_of(present);
    content.body = missing + content.body;
    return content;
  } catch (const base::Error& failure) {
    return {folders.front().filename().string(), fmt::format("{}<p class=\"verdict\">{}</p>\n", missing, escape(failure.what()))};
  } catch (const fs::filesystem_error& failure) {
    return {folders.front().filename().string(), fmt::format("{}<p class=\"verdict\">{}</p>\n", missing, escape(failure.what()))};
  }
}

}  // namespace

LivePage::LivePage(std::vector<fs::path> folders, double share) : folders_(std::move(folders)), share_(share) {}

std::vector<LivePage::Stamp> LivePage::stamps() const {
  std::vector<Stamp> all;
  for (const auto& folder : folders_) {
    all.push_back({is_folder(folder) ? uint64_t{1} : 0, 0, 0});
    for (const auto& file : files_of(folder)) {
      struct stat status {};
      if (::stat(file.c_str(), &status) != 0) status = {};
      all.push_back({status.st_ino, status.st_size, status.st_mtim.tv_sec * int64_t{1'000'000'000} + status.st_mtim.tv_nsec});
    }
  }
  return all;
}

std::shared_ptr<const Page> LivePage::made() const {
  const auto content = content_now(folders_);
  auto page = std::make_shared<Page>();
  page->main = main_of(content.title, local_time(), content.body);
  // Of what the page says, not of when it was made.
  page->tag = fmt::format("{:016x}", std::hash<std::string>()(content.title + '\n' + content.body));
  page->whole = live_document(content.title, page->main, page->tag);
  return page;
}

std::shared_ptr<const Page> LivePage::current() {
  const std::lock_guard lock(mutex_);
  const auto start = Clock::now();
  if (page_ && start < next_) return page_;
  auto now = stamps();
  if (page_ && now == stamps_) return page_;
  page_ = made();
  stamps_ = std::move(now);
  const auto end = Clock::now();
  next_ = end + std::chrono::duration_cast<Clock::duration>((end - start) * (1 / share_ - 1));
  return page_;
}

}  // namespace ingot::report
