#include "host/units.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "host/host_error.h"
#include "host/settings.h"

namespace softmrc::host {
namespace {

using Wide = unsigned __int128;
struct Unit {
  std::string_view name;
  std::uint64_t scale;
};

constexpr std::array rates{Unit{"", 1},          Unit{"k", 1'000},         Unit{"K", 1'000},
                           Unit{"M", 1'000'000}, Unit{"G", 1'000'000'000}, Unit{"T", 1'000'000'000'000}};
constexpr std::array durations_ns{Unit{"ns", 1},
                                  Unit{"us", 1'000},
                                  Unit{"\u00b5s", 1'000},
                                  Unit{"ms", 1'000'000},
                                  Unit{"s", 1'000'000'000},
                                  Unit{"min", 60'000'000'000},
                                  Unit{"h", 3'600'000'000'000}};
constexpr std::array sizes{
    Unit{"", 1},          Unit{"B", 1},          Unit{"k", 1'000},         Unit{"kB", 1'000},
    Unit{"M", 1'000'000}, Unit{"MB", 1'000'000}, Unit{"G", 1'000'000'000}, Unit{"GB", 1'000'000'000},
    Unit{"KiB", 1 << 10}, Unit{"MiB", 1 << 20},  Unit{"GiB", 1 << 30}};
constexpr std::string_view endings_of_rates[] = {"bit/s", "bps", "b/s"};
constexpr std::string_view blanks = " \t\n\r\f\v";
constexpr std::size_t max_digits = 18;  // with any scale, their product fits
constexpr int max_doublings = 31;
constexpr std::uint64_t tick_ns = 1'024;  // of a timeout, times 2^exponent

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string_view without_blanks(std::string_view text) {
  const std::size_t first = text.find_first_not_of(blanks);
  return first == text.npos ? "" : text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

// digits / 10^decimals
struct Decimal {
  std::uint64_t digits = 0;
  std::uint64_t divisor = 1;
};

// Takes a number from the beginning of a text.
std::optional<Decimal> take_number(std::string_view& text) {
  Decimal found;
  std::size_t at = 0, count = 0;
  const auto take = [&](std::uint64_t divides) {
    const std::size_t first = at;
    for (; at < text.size() && is_digit(text[at]); ++at) {
      if (found.digits && ++count > max_digits) return false;
      found.digits = found.digits * 10 + static_cast<std::uint64_t>(text[at] - '0');
      if (divides && found.divisor > std::numeric_limits<std::uint64_t>::max() / 10) return false;
      if (divides) found.divisor *= 10;
    }
    return at > first;
  };
  if (!take(0)) return std::nullopt;
  if (at < text.size() && text[at] == '.') {
    ++at;
    if (!take(1)) return std::nullopt;
  }
  text.remove_prefix(at);
  return found;
}

// A quantity in its smallest unit; nothing where the text is none, or is none of a kind that has to be `whole`.
template <std::size_t N>
std::optional<std::uint64_t> quantity(std::string_view text, const std::array<Unit, N>& units, bool whole) {
  text = without_blanks(text);
  const auto number = take_number(text);
  if (!number) return std::nullopt;
  text = without_blanks(text);
  for (const std::string_view ending : endings_of_rates)
    if (text.ends_with(ending)) {
      text.remove_suffix(ending.size());
      break;
    }
  const auto unit = std::find_if(units.begin(), units.end(), [&](const Unit& one) { return one.name == text; });
  if (unit == units.end() || !number->digits) return std::nullopt;
  const Wide scaled = Wide{number->digits} * unit->scale;
  if (whole && scaled % number->divisor) return std::nullopt;
  const Wide found = scaled / number->divisor;
  return found <= static_cast<Wide>(std::numeric_limits<std::int64_t>::max())
             ? std::optional(static_cast<std::uint64_t>(found))
             : std::nullopt;
}

// The least that the protocol can express and that is no shorter.
std::int64_t timeout_exponent(std::uint64_t ns) {
  for (int exponent = 0; exponent <= max_doublings; ++exponent)
    if (tick_ns << exponent >= ns) return exponent;
  throw UnitError("at most 2,199 s");
}

std::uint64_t or_refused(std::optional<std::uint64_t> found, const std::string& expected,
                         const std::string& hint = "") {
  if (!found) throw UnitError(expected, hint);
  return *found;
}

}  // namespace

std::uint64_t rate_bps(std::string_view text) {
  const std::string_view plain = without_blanks(text);
  std::string hint;
  const bool has_unit = !std::all_of(plain.begin(), plain.end(), is_digit);  // who writes 800 means 800G
  if (!has_unit && plain.find_first_not_of('0') != plain.npos) hint = "Did you mean " + std::string(plain) + "G?";
  return or_refused(has_unit ? quantity(text, rates, true) : std::nullopt, "a rate with its unit, as 100G, 51.2T, 20M",
                    hint);
}

std::uint64_t duration_ns(std::string_view text) {
  return or_refused(quantity(text, durations_ns, false), "a duration with its unit, as 50ms, 1.5s, 200us");
}

TomlValue with_unit(std::string_view name, std::string_view text) {
  if (name == "timeout") return timeout_exponent(duration_ns(text));
  if (name.ends_with("_us")) return std::min(static_cast<double>(duration_ns(text)) / 1e3, longest_us);
  if (name.ends_with("_bps")) return static_cast<std::int64_t>(rate_bps(text));
  if (name.ends_with("_bytes"))
    return static_cast<std::int64_t>(or_refused(quantity(text, sizes, true), "a size, as 8MiB, 64k, or whole bytes"));
  throw UnitError("a number, without quotes");
}

}  // namespace softmrc::host
