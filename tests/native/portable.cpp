#include "portable.h"

using namespace softmrc::native;

namespace {

void print(const char* part, const Hash& hash) {
  std::printf("%-11s %016llx\n", part, static_cast<unsigned long long>(hash.value()));
  std::fflush(stdout);
}

}  // namespace

int main() {
  print("vectors", vectors(stdin));
  print("checksums", checksums());
  print("reductions", reductions());
  print("windows", windows());
  print("pairs", pairs());
  print("sockets", sockets());
}
