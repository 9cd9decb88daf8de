#include "interchange/commands.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <ostream>

#include "base/text.h"

namespace ingot::interchange {
namespace {

int print(const ConvertReport& report, bool json, std::ostream& out) {
  if (json) {
    const nlohmann::ordered_json document = {{"path", report.path.string()},
                                             {"tensors", report.tensors},
                                             {"extras", report.extras},
                                             {"data_bytes", report.data_bytes},
                                             {"left_out", report.left_out}};
    out << document.dump(2) << "\n";
    return 0;
  }
  out << fmt::format("{}: {} tensors, {}", report.path.string(), report.tensors, base::format_bytes(report.data_bytes));
  if (report.extras > 0) out << fmt::format(", {} other records", report.extras);
  out << "\n";
  if (!report.left_out.empty()) out << fmt::format("left out: {}\n", base::join(report.left_out, ", "));
  return 0;
}

}  // namespace

int import_dcp(const ImportCommand& command, std::ostream& out) {
  ImportOptions options;
  options.step = command.step;
  options.skip_foreign = command.skip_foreign;
  return print(import_dcp(command.source, command.folder, options), command.json, out);
}

int export_dcp(const ExportCommand& command, std::ostream& out) {
  ExportOptions options;
  options.write.chunk_limit_bytes = static_cast<int64_t>(command.chunk_mib * (1 << 20));
  options.write.file_limit_bytes = static_cast<int64_t>(command.file_mib * (1 << 20));
  return print(export_dcp(command.source, command.folder, options), command.json, out);
}

}  // namespace ingot::interchange
