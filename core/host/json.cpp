#include "host/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "host/host_error.h"

namespace softmrc::host {
namespace {

constexpr int deepest = 16;

// How many bytes the UTF-8 character has with which this begins; 0 where it begins with none.
std::size_t character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const std::size_t size = byte(0) < 0x80   ? 1
                           : byte(0) < 0xC2 ? 0
                           : byte(0) < 0xE0 ? 2
                           : byte(0) < 0xF0 ? 3
                           : byte(0) < 0xF5 ? 4
                                            : 0;
  for (std::size_t i = 1; i < size; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  const bool is_longer_than_it_must = (byte(0) == 0xE0 && byte(1) < 0xA0) || (byte(0) == 0xF0 && byte(1) < 0x90);
  const bool is_none = (byte(0) == 0xED && byte(1) >= 0xA0) || (byte(0) == 0xF4 && byte(1) >= 0x90);
  return is_longer_than_it_must || is_none ? 0 : size;
}

// What is no text, as names of programs and files need not be, has a mark in its place: JSON is UTF-8.
void append_quoted(std::string& out, std::string_view text) {
  static constexpr char digits[] = "0123456789abcdef";
  out += '"';
  while (!text.empty()) {
    const std::size_t size = character(text);
    const char c = text.front();
    const auto code = static_cast<unsigned char>(c);
    if (size == 0) out += '?';
    else if (c == '"' || c == '\\') (out += '\\') += c;
    else if (c == '\n') out += "\\n";
    else if (code < 0x20 || code == 0x7F) ((out += "\\u00") += digits[code >> 4]) += digits[code & 15];
    else out += text.substr(0, size);
    text.remove_prefix(std::max<std::size_t>(size, 1));
  }
  out += '"';
}

void append_utf8(std::string& out, std::uint32_t code) {
  const auto put = [&](std::uint32_t byte) { out += static_cast<char>(byte); };
  if (code < 0x80) return put(code);
  if (code < 0x800) return put(0xC0 | code >> 6), put(0x80 | (code & 63));
  if (code < 0x10000) return put(0xE0 | code >> 12), put(0x80 | (code >> 6 & 63)), put(0x80 | (code & 63));
  put(0xF0 | code >> 18), put(0x80 | (code >> 12 & 63)), put(0x80 | (code >> 6 & 63)), put(0x80 | (code & 63));
}

class JsonParser {
 public:
  explicit JsonParser(std::string_view text) : text_(text) {}

  Json whole() {
    Json found = value(0);
    skip_blanks();
    if (at_ != text_.size()) fail("more stands there than one value");
    return found;
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw HostError("no JSON: " + why + ", at byte " + std::to_string(at_));
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip_blanks() {
    while (at_ < text_.size() && (peek() == ' ' || peek() == '\t' || peek() == '\n' || peek() == '\r')) ++at_;
  }
  bool take(char c) {
    skip_blanks();
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  bool take_word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  Json value(int depth) {
    if (depth > deepest) fail("it is too deep");
    skip_blanks();
    switch (peek()) {
      case '{': return object(depth);
      case '[': return list(depth);
      case '"': return quoted();
      default: break;
    }
    if (take_word("true")) return true;
    if (take_word("false")) return false;
    if (take_word("null")) return {};
    return number();
  }

  Json object(int depth) {
    Json::Object found;
    ++at_;
    if (take('}')) return found;
    do {
      skip_blanks();
      if (peek() != '"') fail("a name in quotes is missing");
      std::string name = quoted();
      if (!take(':')) fail("a : is missing");
      found.emplace_back(std::move(name), value(depth + 1));
    } while (take(','));
    if (!take('}')) fail("a } is missing");
    return found;
  }

  Json list(int depth) {
    Json::List found;
    ++at_;
    if (take(']')) return found;
    do found.push_back(value(depth + 1));
    while (take(','));
    if (!take(']')) fail("a ] is missing");
    return found;
  }

  Json number() {
    const std::size_t begin = at_;
    const auto digits = [this] {
      const std::size_t from = at_;
      while (peek() >= '0' && peek() <= '9') ++at_;
      if (at_ == from) fail("a value is missing");
    };
    if (peek() == '-') ++at_;
    if (peek() == '0') ++at_;
    else digits();
    if (peek() == '.') ++at_, digits();
    if (peek() == 'e' || peek() == 'E') {
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      digits();
    }
    const char *first = text_.data() + begin, *last = text_.data() + at_;
    std::int64_t whole = 0;
    if (const auto [to, error] = std::from_chars(first, last, whole); error == std::errc{} && to == last) return whole;
    double real = 0;
    if (const auto [to, error] = std::from_chars(first, last, real);
        error == std::errc{} && to == last && std::isfinite(real))
      return real;
    fail("a number that is too large");
  }

  std::uint32_t hex4() {
    std::uint32_t code = 0;
    const std::string_view digits = text_.substr(at_, 4);
    const auto [to, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (digits.size() != 4 || error != std::errc{} || to != digits.data() + 4) fail("four digits are missing");
    at_ += 4;
    return code;
  }

  std::string quoted() {
    std::string found;
    ++at_;
    while (peek() != '"') {
      if (at_ >= text_.size() || static_cast<unsigned char>(peek()) < 0x20) fail("a text does not end");
      const char c = text_[at_++];
      if (c != '\\') {
        found += c;
        continue;
      }
      const char escaped = peek();
      ++at_;
      switch (escaped) {
        case '"':
        case '\\':
        case '/': found += escaped; break;
        case 'b': found += '\b'; break;
        case 'f': found += '\f'; break;
        case 'n': found += '\n'; break;
        case 'r': found += '\r'; break;
        case 't': found += '\t'; break;
        case 'u': append_utf8(found, code_point()); break;
        default: fail("an unknown escape");
      }
    }
    ++at_;
    return found;
  }

  std::uint32_t code_point() {
    const std::uint32_t first = hex4();
    if (first < 0xD800 || first > 0xDFFF) return first;
    if (first > 0xDBFF || !take_word("\\u")) fail("half a character");
    const std::uint32_t second = hex4();
    if (second < 0xDC00 || second > 0xDFFF) fail("half a character");
    return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

const Json* Json::find(std::string_view name) const {
  const Object* object = as_object();
  if (!object) return nullptr;
  for (const auto& [key, value] : *object)
    if (key == name) return &value;
  return nullptr;
}

std::string Json::text() const {
  std::string out;
  write(out);
  return out;
}

void Json::write(std::string& out) const {
  if (const List* list = as_list()) {
    out += '[';
    for (std::size_t i = 0; i < list->size(); ++i) {
      if (i) out += ", ";
      (*list)[i].write(out);
    }
    out += ']';
  } else if (const Object* object = as_object()) {
    out += '{';
    for (std::size_t i = 0; i < object->size(); ++i) {
      if (i) out += ", ";
      append_quoted(out, (*object)[i].first);
      out += ": ";
      (*object)[i].second.write(out);
    }
    out += '}';
  } else if (const std::string* text = as_string()) {
    append_quoted(out, *text);
  } else if (const bool* flag = as_bool()) {
    out += *flag ? "true" : "false";
  } else if (const std::int64_t* whole = as_int()) {
    out += std::to_string(*whole);
  } else if (const double* real = std::get_if<double>(&value_); real && std::isfinite(*real)) {
    char buffer[32];
    out.append(buffer, std::to_chars(buffer, buffer + sizeof buffer, *real).ptr);
  } else {
    out += "null";
  }
}

Json parse_json(std::string_view text) { return JsonParser(text).whole(); }

}  // namespace softmrc::host
