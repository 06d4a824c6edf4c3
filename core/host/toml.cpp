#include "host/toml.h"

#include <charconv>

#include "host/host_error.h"

namespace softmrc::host {
namespace {

class TomlParser {
 public:
  TomlParser(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  TomlDocument tables() {
    TomlDocument found;
    std::string current;
    found[current];
    while (skip_lines()) {
      if (take('[')) {
        current = key();
        expect(']');
        if (!found.try_emplace(current).second) fail("[" + current + "] is there twice");
      } else {
        const std::string named = key();
        expect('=');
        if (!found[current].emplace(named, value()).second) fail(named + " is there twice");
      }
      end_line();
    }
    return found;
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw HostError(name_ + ":" + std::to_string(line_) + ": invalid TOML: " + why);
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip_blanks() {
    while (peek() == ' ' || peek() == '\t') ++at_;
  }
  bool take(char c) {
    skip_blanks();
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) fail(std::string("a ") + c + " is missing");
  }
  void skip_comment() {
    if (peek() == '#')
      while (at_ < text_.size() && peek() != '\n') ++at_;
  }
  bool take_newline() {
    if (peek() == '\r') ++at_;
    if (peek() != '\n') return false;
    ++at_;
    ++line_;
    return true;
  }
  // To the next thing, over the ends of lines. False at the end.
  bool skip_lines() {
    do {
      skip_blanks();
      skip_comment();
    } while (take_newline());
    return at_ < text_.size();
  }
  void end_line() {
    skip_blanks();
    skip_comment();
    if (at_ < text_.size() && !take_newline()) fail("a line has more than one value");
  }

  std::string key() {
    skip_blanks();
    std::string found;
    while (std::isalnum(static_cast<unsigned char>(peek())) || peek() == '_' || peek() == '-') found += text_[at_++];
    if (found.empty()) fail("a name of letters, digits, _ and - is missing");
    return found;
  }

  TomlValue value() {
    skip_blanks();
    if (peek() == '"' || peek() == '\'') return quoted();
    if (peek() == '[') return list();
    std::string word;
    while (std::isalnum(static_cast<unsigned char>(peek())) || peek() == '_' || peek() == '+' || peek() == '-' ||
           peek() == '.')
      word += text_[at_++];
    if (word == "true" || word == "false") return word == "true";
    return number(word);
  }

  TomlValue number(const std::string& word) const {
    std::string digits;
    for (const char c : word)
      if (c != '_' && !(c == '+' && digits.empty())) digits += c;
    const char* const end = digits.data() + digits.size();
    std::int64_t whole = 0;
    if (const auto [to, error] = std::from_chars(digits.data(), end, whole); error == std::errc{} && to == end)
      return whole;
    double real = 0;
    if (const auto [to, error] = std::from_chars(digits.data(), end, real); error == std::errc{} && to == end)
      return real;
    fail(word.empty() ? "a value is missing"
                      : word + " is no value: a number, true, false, a text in quotes or a list of texts");
  }

  std::string quoted() {
    const char quote = text_[at_++];
    std::string found;
    while (peek() != quote) {
      if (at_ >= text_.size() || peek() == '\n') fail("a text does not end");
      char c = text_[at_++];
      if (c == '\\' && quote == '"') {
        c = peek();
        if (c != '"' && c != '\\') fail("only \\\" and \\\\ are known in texts");
        ++at_;
      }
      found += c;
    }
    ++at_;
    return found;
  }

  std::vector<std::string> list() {
    ++at_;
    std::vector<std::string> found;
    while (true) {
      if (!skip_lines()) fail("a list does not end");
      if (take(']')) return found;
      if (peek() != '"' && peek() != '\'') fail("lists are of texts");
      found.push_back(quoted());
      if (!skip_lines()) fail("a list does not end");
      if (take(',')) continue;
      expect(']');
      return found;
    }
  }

  std::string_view text_;
  const std::string& name_;
  std::size_t at_ = 0;
  std::uint32_t line_ = 1;
};

}  // namespace

TomlDocument parse_toml(std::string_view text, const std::string& name) { return TomlParser(text, name).tables(); }

std::string to_string(const TomlValue& value) {
  if (const bool* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return std::to_string(*whole);
  if (const auto* real = std::get_if<double>(&value)) return std::to_string(*real);
  if (const auto* text = std::get_if<std::string>(&value)) return "'" + *text + "'";
  return "a list";
}

}  // namespace softmrc::host
