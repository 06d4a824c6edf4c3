// Messages to NCCL: through the logger that it gave us, whose last warning is what people see.
#pragma once

#include <atomic>
#include <string>

#include "nccl/abi.h"

namespace softmrc::nccl {

class Logger {
 public:
  void set(LogFunction logger) {
    if (logger) log_function_ = logger;
  }
  void warn(const std::string& text) const { log(LogLevel::warn, ~0ul, text); }
  void info(unsigned long subsystem, const std::string& text) const { log(LogLevel::info, subsystem, text); }

 private:
  void log(LogLevel level, unsigned long subsystems, const std::string& text) const {
    if (const LogFunction logger = log_function_)
      logger(level, subsystems, "softmrc", 0, "NET/SoftMRC : %s", text.c_str());
  }

  std::atomic<LogFunction> log_function_{nullptr};
};

}  // namespace softmrc::nccl
