// A settings file: as much of TOML as names and values of settings need. What it does not know it refuses, with the
// line.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace softmrc::host {

using TomlValue = std::variant<bool, std::int64_t, double, std::string, std::vector<std::string>>;
using TomlTable = std::map<std::string, TomlValue>;

// By the names of tables; what stands before the first is in "".
using TomlDocument = std::map<std::string, TomlTable>;

// `name` is the file's, for what is said of it. Throws HostError.
TomlDocument parse_toml(std::string_view text, const std::string& name);
std::string to_string(const TomlValue& value);

}  // namespace softmrc::host
