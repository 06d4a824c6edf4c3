#include "host/settings.h"

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "host/denylist.h"
#include "host/device_plan.h"
#include "host/fabric_host.h"
#include "host/faults.h"
#include "host/host_error.h"
#include "host/toml.h"
#include "host/units.h"

namespace softmrc::host {
namespace {

// What a person wrote, in the type of its setting; false where it is none of that. Throws HostError, for a unit that is
// none.
template <typename T>
bool assign(T& into, const TomlValue& value, std::string_view name) {
  if constexpr (!std::is_same_v<T, std::string> && !std::is_same_v<T, bool>)
    if (const auto* text = std::get_if<std::string>(&value)) return assign(into, with_unit(name, *text), name);
  if constexpr (std::is_same_v<T, std::string>) {
    const auto* text = std::get_if<std::string>(&value);
    if (text) into = *text;
    return text;
  } else if constexpr (std::is_same_v<T, bool>) {
    const bool* flag = std::get_if<bool>(&value);
    if (flag) into = *flag;
    return flag;
  } else {
    const auto* whole = std::get_if<std::int64_t>(&value);
    if constexpr (std::is_same_v<T, double>) {
      const auto* real = std::get_if<double>(&value);
      if (real) into = *real;
      else if (whole) into = static_cast<double>(*whole);
      return (real || whole) && std::isfinite(into);
    } else {
      const auto* real = std::get_if<double>(&value);
      if (real && std::abs(*real) < 0x1p62 && std::trunc(*real) == *real)
        return assign(into, TomlValue{static_cast<std::int64_t>(*real)}, name);  // 1e9
      if (!whole || !std::in_range<T>(*whole)) return false;
      into = static_cast<T>(*whole);
      return true;
    }
  }
}

template <typename T>
const char* words_of() {
  return std::is_same_v<T, std::string> ? "a text"
         : std::is_same_v<T, bool>      ? "true or false"
         : std::is_same_v<T, double>    ? "a number"
                                        : "a whole number";
}

// What the file says, over what holds where it says nothing.
DeviceSettings device_of(const TomlTable& table, const std::string& file, DeviceSettings settings) {
  for (const auto& [name, value] : table) {
    bool is_known = false, is_taken = false;
    std::string expected, hint;
    proto::each_setting<DeviceSettings>([&, &name = name, &value = value](const auto& one) {
      if (one.name != name) return;
      is_known = true;
      expected = words_of<typename std::remove_cvref_t<decltype(one)>::Value>();
      try {
        is_taken = assign(settings.*one.member, value, name);
      } catch (const UnitError& refusal) {
        expected = refusal.what();
        hint = refusal.hint;
      }
    });
    if (!is_known) throw HostError(file + ": " + message("device." + name, "unknown key", to_string(value)));
    if (!is_taken)
      throw HostError(file + ": " + message("device." + name, "must be " + expected, to_string(value), hint));
  }
  raise_if(validate(settings));
  return settings;
}

std::string trimmed(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t");
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::vector<std::string> names_in(const std::string& text) {
  std::vector<std::string> found;
  std::istringstream stream(text);
  for (std::string one; std::getline(stream, one, ',');)
    if (const std::string name = trimmed(one); !name.empty()) found.push_back(name);
  return found;
}

std::string text_of_file(const char* variable, const std::string& file) {
  struct stat found{};
  if (stat(file.c_str(), &found) != 0) throw HostError(message(variable, "no such file", shown(file)));
  if (S_ISDIR(found.st_mode)) throw HostError(message(variable, "must be a file, and is a directory", shown(file)));
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw HostError(message(variable, std::string("cannot be read: ") + std::strerror(errno), shown(file)));
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

HostSettings from_file(const std::string& file, HostSettings settings) {
  for (const auto& [name, table] : parse_toml(text_of_file("SOFTMRC_CONFIG", file), file)) {
    if (name == "device") {
      settings.device = device_of(table, file, settings.device);
      continue;
    }
    if (!name.empty())
      throw HostError(file + ": " + message(name, "unknown key", "", "Known keys: planes, and a table [device]."));
    for (const auto& [key, value] : table) {
      const auto* planes = std::get_if<std::vector<std::string>>(&value);
      if (key != "planes" || !planes)
        throw HostError(file + ": " +
                        (key == "planes" ? message(key, "must be a list of strings", to_string(value))
                                         : message(key, "unknown key", to_string(value),
                                                   "Known keys: planes, and a table [device].")));
      settings.planes = *planes;
    }
  }
  return settings;
}

double cores() {
  cpu_set_t set;
  double allowed = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  std::ifstream quota_file("/sys/fs/cgroup/cpu.max");
  double quota = 0, period = 0;
  if (quota_file >> quota >> period && period > 0) allowed = std::min(allowed, quota / period);
  return allowed;
}

}  // namespace

proto::MaybeError validate(const DeviceSettings& settings) {
  if (auto v = proto::within_bounds(settings)) return v;
  const std::uint64_t speed = 0;
  auto verdict = proto::validate(congestion_of(settings, {&speed, 1}, false));
  if (verdict && verdict->field == "algorithm") verdict->field = "congestion_control";  // as people know it
  if (verdict) return verdict;
  if (settings.seal == "auto" || settings.seal == "on" || settings.seal == "off") return std::nullopt;
  return proto::refused("seal", settings.seal, "'auto', 'on' or 'off'");
}

std::string of_process(const char* variable) {
  const char* value = std::getenv(variable);
  return value ? value : "";
}

proto::MaybeError read_control(const Environment& environment, bool& is_wanted) {
  const std::string said = environment("SOFTMRC_CONTROL");
  is_wanted = said != "0";
  if (!said.empty() && said != "0" && said != "1") return proto::refused("SOFTMRC_CONTROL", said, "0 or 1");
  return std::nullopt;
}

HostSettings read_settings(const Environment& environment) {
  HostSettings settings;
  const std::string fabric = environment("SOFTMRC_FABRIC"), host = environment("SOFTMRC_HOST");
  if (!fabric.empty() && !host.empty()) {
    settings.fabric = std::make_shared<FabricHost>(text_of_file("SOFTMRC_FABRIC", fabric), fabric, host);
    settings.device = settings.fabric->settings();
  }
  if (const std::string file = environment("SOFTMRC_DENYLIST"); !file.empty()) {
    if (!settings.fabric)
      throw HostError(message("SOFTMRC_DENYLIST", "needs a fabric", shown(file),
                              "Set SOFTMRC_FABRIC and SOFTMRC_HOST to the fabric file and this host."));
    settings.denylist = std::make_shared<Denylist>(text_of_file("SOFTMRC_DENYLIST", file), file, *settings.fabric);
  }
  if (const std::string file = environment("SOFTMRC_CONFIG"); !file.empty())
    settings = from_file(file, std::move(settings));
  if (const std::string text = environment("SOFTMRC_PLANES"); !text.empty()) {
    settings.planes = names_in(text);
    if (settings.planes.empty())
      throw HostError(
          message("SOFTMRC_PLANES", "must be addresses or interfaces, with commas between them", shown(text)));
  }
  for (auto one = settings.planes.begin(); one != settings.planes.end(); ++one)
    if (std::find(settings.planes.begin(), one, *one) != one)
      throw HostError(message("planes", "must name each plane once, and names one twice", shown(*one)));
  if (settings.planes.empty() && settings.fabric) settings.planes = settings.fabric->planes();
  settings.device.srv6 = settings.fabric != nullptr;  // whose paths they are
  settings.secret = environment("SOFTMRC_SECRET");
  settings.faults = read_faults(environment);
  settings.capture = environment("SOFTMRC_CAPTURE");
  if (const std::size_t at = settings.capture.find("%p"); at != std::string::npos)
    settings.capture.replace(at, 2, std::to_string(getpid()));
  raise_if(read_control(environment, settings.control));
  return settings;
}

std::uint32_t lanes_here(const Environment& environment, std::uint32_t most) {
  const std::string said = environment("LOCAL_WORLD_SIZE");
  const bool is_number = !said.empty() && said.size() < 6 &&
                         std::all_of(said.begin(), said.end(), [](char c) { return c >= '0' && c <= '9'; });
  const int processes = is_number ? std::max(1, std::atoi(said.c_str())) : 1;
  return std::clamp(static_cast<std::uint32_t>(cores() / 2 / processes), 1u, most);
}

}  // namespace softmrc::host
