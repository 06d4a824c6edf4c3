// What NCCL is told in words: through the logger that it gave us, whose last warning is what people see.
#pragma once

#include <atomic>
#include <string>

#include "nccl/abi.h"

namespace softmrc::nccl {

class Words {
 public:
  void set(Logger logger) {
    if (logger) logger_ = logger;
  }
  void warn(const std::string& text) const { say(LogLevel::warn, ~0ul, text); }
  void tell(unsigned long subsystem, const std::string& text) const { say(LogLevel::info, subsystem, text); }

 private:
  void say(LogLevel level, unsigned long subsystems, const std::string& text) const {
    if (const Logger logger = logger_) logger(level, subsystems, "softmrc", 0, "NET/SoftMRC : %s", text.c_str());
  }

  std::atomic<Logger> logger_{nullptr};
};

}  // namespace softmrc::nccl
