// A settings file: as much of TOML as names and values of settings need. What it does not know it refuses, with the line.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace softmrc::face {

using Value = std::variant<bool, std::int64_t, double, std::string, std::vector<std::string>>;
using Table = std::map<std::string, Value>;

// By the names of tables; what stands before the first is in "".
using Tables = std::map<std::string, Table>;

// `name` is the file's, for what is said of it. Throws Refusal.
Tables read_tables(std::string_view text, const std::string& name);
std::string in_words(const Value& value);

}  // namespace softmrc::face
