#include <cstring>
#include <string>
#include <vector>

#include "portable.h"
#include "wire/describe.h"
#include "wire/entropy.h"
#include "wire/packet.h"

namespace softmrc::native {
namespace {

// The words of a line, taken one after the other.
class Words {
 public:
  explicit Words(char* line) : next_(std::strtok(line, " \n")) {}
  bool empty() const { return next_ == nullptr; }
  std::string text() {
    require(!empty(), "a line has all its words");
    std::string word = next_;
    next_ = std::strtok(nullptr, " \n");
    return word;
  }
  std::uint32_t number() { return static_cast<std::uint32_t>(std::strtoul(text().c_str(), nullptr, 0)); }
  std::vector<std::uint8_t> bytes() {
    const std::string hex = text();
    std::vector<std::uint8_t> out;
    for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
      out.push_back(static_cast<std::uint8_t>(std::strtoul(hex.substr(i, 2).c_str(), nullptr, 16)));
    return out;
  }
  wire::EvBytes ev() {
    wire::EvBytes out{};
    const auto found = bytes();
    require(found.size() <= out.size(), "an EV has at most 32 bytes");
    std::copy(found.begin(), found.end(), out.begin());
    return out;
  }

 private:
  char* next_;
};

// What is read is written again, byte for byte.
void packet(Words& words, Hash& hash) {
  const auto bytes = words.bytes();
  wire::Packet read;
  require(wire::parse(bytes, {.has_icrc = false}, read) == wire::ParseError::none, "a golden packet is read");
  std::vector<std::uint8_t> written(wire::packet_size(read));
  require(wire::emit(read, written) == bytes.size() && written == bytes, "and written as it was");
  const std::string described = wire::describe(read);
  hash.add({reinterpret_cast<const std::uint8_t*>(described.data()), described.size()});
}

void expansion(Words& words, Hash& hash) {
  wire::EvLayout layout;
  for (std::uint32_t left = words.number(); left; --left)
    layout.widths.push_back(static_cast<std::uint16_t>(words.number()));
  for (std::uint32_t left = words.number(); left; --left) {
    wire::EvField field;
    field.width = static_cast<std::uint8_t>(words.number());
    for (auto* value : {&field.init_val, &field.min, &field.max, &field.mask}) *value = words.number();
    layout.fields.push_back(field);
  }
  const wire::EvBytes ev = words.ev();
  const wire::EvBytes expanded = wire::expand(layout, ev);
  require(expanded == words.ev(), "an EV expands as the reference says");
  hash.add(expanded);
}

}  // namespace

Hash vectors(std::FILE* lines) {
  Hash hash;
  std::uint64_t count = 0;
  char line[4096];
  for (; std::fgets(line, sizeof line, lines); ++count) {
    Words words(line);
    const std::string kind = words.text();
    require(kind == "packet" || kind == "expansion", "a line is a packet or an expansion");
    kind == "packet" ? packet(words, hash) : expansion(words, hash);
    require(words.empty(), "and nothing more");
  }
  require(count > 0, "there are vectors");
  hash.add(count);
  return hash;
}

}  // namespace softmrc::native
