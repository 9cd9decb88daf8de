#include "device/tracer.h"

#include "base/error.h"
#include "base/work_scope.h"
#include "device/state.h"
#include "device/trace_writer.h"

namespace ingot::device {
namespace {

struct Entered : at::ObserverContext {
  Entered(std::shared_ptr<TraceWriter> w, int32_t s) : writer(std::move(w)), before(s) {}
  std::shared_ptr<TraceWriter> writer;
  int32_t before;
};

std::unique_ptr<at::ObserverContext> on_enter(const at::RecordFunction& function) {
  const auto writer = state_of(current_index()).writer;
  if (!writer) return nullptr;
  const auto before = function.scope() == at::RecordScope::BACKWARD_FUNCTION
                          ? writer->enter_backward(function.forwardThreadId(), function.seqNr())
                          : writer->enter(function.name(), base::WorkScope::entered());
  return std::make_unique<Entered>(writer, before);
}

void on_leave(const at::RecordFunction&, at::ObserverContext* context) {
  if (const auto* entered = static_cast<Entered*>(context)) entered->writer->go_back(entered->before);
}

}  // namespace

Tracer::Tracer(at::Device device) : device_(device), guard_(device) {
  auto& state = state_of(device);
  if (state.writer) throw base::Error(fmt::format("{} is traced already", device.str()));
  writer_ = std::make_shared<TraceWriter>(device.index(), state.allocated_bytes);
  state.writer = writer_;
  callback_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&on_enter, &on_leave).scopes({at::RecordScope::USER_SCOPE, at::RecordScope::BACKWARD_FUNCTION}));
}

Tracer::~Tracer() {
  at::removeCallback(callback_);
  state_of(device_).writer = nullptr;
  writer_->finish();
}

void Tracer::record_operations(bool wanted) { writer_->record_operations(wanted); }
void Tracer::restart_peak() { writer_->restart_peak(); }
int64_t Tracer::position() const { return writer_->position(); }

Trace Tracer::finish() {
  state_of(device_).writer = nullptr;
  return writer_->finish();
}

CommunicationRecord::CommunicationRecord(std::optional<at::Device> device, Trace::Communication communication) {
  const auto index = device && is_virtual(*device) ? device->index() : current_index();
  writer_ = state_of(index).writer;
  if (writer_) number_ = writer_->communication_started(std::move(communication));
}

void CommunicationRecord::waited() {
  if (writer_) writer_->communication_waited(number_);
}

}  // namespace ingot::device
