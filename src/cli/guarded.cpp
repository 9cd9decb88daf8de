#include <cstdio>
#include <exception>
#include <new>

#include "base/error.h"
#include "base/log.h"
#include "cli/verb.h"

namespace ingot::cli {

int guarded(const std::function<int()>& verb) {
  try {
    return verb();
  } catch (const base::UsageError& wrong) {
    base::log_error("{}", wrong.what());
    return 2;
  } catch (const base::ConfigError& wrong) {
    base::log_error("{}", wrong.what());
    return 2;
  } catch (const base::VerificationError& missed) {
    base::log_error("{}", missed.what());
    return 3;
  } catch (const std::bad_alloc&) {
    base::log_error("out of memory; a smaller train.microbatch_size or train.recompute = \"full\" needs less");
    return 1;
  } catch (const std::exception& failure) {
    base::log_error("{}", base::message_of(failure));
    return 1;
  }
}

}  // namespace ingot::cli
