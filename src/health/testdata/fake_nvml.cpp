// A driver of two GPUs with NVML's interface, for tests: the second one has errors, and answers no question about its links.
#include <cstdlib>

extern "C" {
int nvmlInit_v2() { return std::getenv("FAKE_NVML_BROKEN") ? 999 : 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) { return *count = 3, 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  static char devices[2];
  if (index >= 2) return 15;  // NVML_ERROR_GPU_IS_LOST
  return *device = devices + index, 0;
}
static bool is_second(void* device) {
  void* second = nullptr;
  nvmlDeviceGetHandleByIndex_v2(1, &second);
  return device == second;
}
int nvmlDeviceGetTotalEccErrors(void* device, int kind, int counter, unsigned long long* errors) {
  return *errors = is_second(device) && counter == 0 ? (kind == 1 ? 2 : 40) : 0, 0;
}
int nvmlDeviceGetTemperature(void* device, int, unsigned* celsius) { return *celsius = is_second(device) ? 91 : 45, 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* reasons) {
  return *reasons = is_second(device) ? 0x40 /* heat */ : 0x1 | 0x4 /* idle, the power cap that was set */, 0;
}
int nvmlDeviceGetRemappedRows(void* device, unsigned* corrected, unsigned* uncorrected, unsigned* pending, unsigned* failed) {
  *corrected = *uncorrected = *failed = 0;
  return *pending = is_second(device), 0;
}
int nvmlDeviceGetNvLinkErrorCounter(void* device, unsigned link, int which, unsigned long long* errors) {
  if (is_second(device) || link >= 4) return 3;  // NVML_ERROR_NOT_SUPPORTED
  return *errors = link == 2 && which == 0 ? 7 : 0, 0;
}
}
