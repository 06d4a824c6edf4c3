#include "face/faults.h"

#include <charconv>

#include "face/refusal.h"

namespace softmrc::face {
namespace {

constexpr const char* allowed = "; allowed: [PLANE:]NAME=NUMBER,... with ; between planes; names are drop, duplicate, reorder, "
                                "corrupt, mark, trim (shares), delay_us, reorder_delay_us, and black_hole without a number";
constexpr double longest_delay_us = 10e6;

[[noreturn]] void refuse(std::string_view text) { throw Refusal("faults are '" + std::string(text) + "'" + allowed); }

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(at), text.size());
    if (end > 0) parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

template <typename T>
T number(std::string_view text, T most) {
  T value{};
  const auto [to, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || to != text.data() + text.size() || !(value >= 0 && value <= most)) refuse(text);
  return value;
}

void set(udp::Faults& faults, std::string_view word) {
  const std::size_t equals = word.find('=');
  const std::string_view name = word.substr(0, equals);
  if (name == "black_hole" && equals == std::string_view::npos) {
    faults.black_hole = true;
    return;
  }
  if (equals == std::string_view::npos) refuse(word);
  const std::string_view value = word.substr(equals + 1);
  const auto delay = [&] { return Duration{static_cast<std::int64_t>(number(value, longest_delay_us) * 1e6)}; };
#define X(share) if (name == #share) return void(faults.share = number(value, 1.0));
  SOFTMRC_FAULT_SHARES(X)
#undef X
  if (name == "delay_us") faults.delay = delay();
  else if (name == "reorder_delay_us") faults.reorder_delay = delay();
  else refuse(word);
}

}  // namespace

std::vector<udp::Faults> parse_faults(std::string_view text, std::size_t planes) {
  std::vector<udp::Faults> found(planes);
  std::string plain;
  for (const char c : text)
    if (c == '\n') plain += ';';
    else if (c != ' ' && c != '\t' && c != '\r') plain += c;
  for (std::string_view clause : split(plain, ';')) {
    const std::size_t colon = clause.find(':');
    std::size_t first = 0, end = planes;
    if (colon != std::string_view::npos) {
      if (planes == 0) refuse(clause);
      first = number<std::size_t>(clause.substr(0, colon), planes - 1);
      end = first + 1;
      clause.remove_prefix(colon + 1);
    }
    for (const std::string_view word : split(clause, ','))
      for (std::size_t plane = first; plane < end; ++plane) set(found[plane], word);
  }
  return found;
}

}  // namespace softmrc::face
