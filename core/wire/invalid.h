// What is said of a value that a caller gave and that is wrong. The layers above turn it into an exception.
#pragma once

#include <string>

namespace softmrc::wire {

struct InvalidArgument {
  std::string field;
  std::string value;
  std::string expected;  // completes "must be …"
};

}  // namespace softmrc::wire
