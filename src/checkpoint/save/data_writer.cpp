#include "checkpoint/save/data_writer.h"

#include <fmt/format.h>

namespace ingot::checkpoint {
namespace {

constexpr std::byte kZeros[kLargeAlignment] = {};

}  // namespace

DataWriter::DataWriter(const Storage& storage, const fs::path& folder, const CheckpointId& id, int64_t step, uint32_t file,
                       const std::string& name)
    : file_(file), name_(name.empty() ? fmt::format("data_{:05}.bin", file) : name), sink_(storage.create(folder / name_)) {
  const auto header = data_header(id, step, file);
  sink_->write(header.data(), kDataHeaderBytes);
  end_ = kDataHeaderBytes;
}

PieceRecord DataWriter::add_piece(const tensor::LogicalTensor& tensor, tensor::Box box, const std::byte* data) {
  PieceRecord piece;
  const int64_t bytes = tensor::element_count(box.extent) * tensor::size_bytes(tensor.dtype);
  piece.box = std::move(box);
  piece.file = file_;
  piece.offset = append(data, bytes, piece.digest);
  return piece;
}

ExtraRecord DataWriter::add_extra(const std::string& name, std::string_view content) {
  ExtraRecord extra{name, file_, 0, static_cast<int64_t>(content.size()), {}};
  extra.offset = append(content.data(), extra.size_bytes, extra.digest);
  return extra;
}

FileRecord DataWriter::finish() {
  sink_->finish();
  return {name_, end_};
}

int64_t DataWriter::append(const void* data, int64_t size_bytes, Digest& digest) {
  const int64_t begin = aligned(end_, size_bytes);
  if (begin > end_) sink_->write(kZeros, begin - end_);
  digest = digest_of(data, size_bytes);
  sink_->write(data, size_bytes);
  end_ = begin + size_bytes;
  return begin;
}

}  // namespace ingot::checkpoint
