#include "host/denylist.h"

#include <algorithm>

#include "host/host_error.h"
#include "host/json.h"

namespace softmrc::host {
namespace {

constexpr std::int64_t version = 1;
constexpr std::size_t max_bytes = 16 << 20;

}  // namespace

Denylist::Denylist(std::string_view text, const std::string& name, const FabricHost& fabric) {
  const auto refuse = [&](const std::string& what) {
    throw HostError(
        message("SOFTMRC_DENYLIST", "must be a denylist as `softmrc mapper` writes it (" + what + ")", shown(name)));
  };
  if (text.size() > max_bytes) refuse("at most " + std::to_string(max_bytes) + " bytes");
  Json found;
  try {
    found = parse_json(text);
  } catch (const HostError& error) {
    refuse(error.what());
  }
  const Json* said = found.find("denylist");
  if (!said || !said->as_int() || *said->as_int() != version)
    refuse("\"denylist\": " + std::to_string(version) + " is missing");
  const Json* entries = found.find("entries");
  if (!entries || !entries->as_list()) refuse("no list of entries");
  for (const Json& entry : *entries->as_list()) {
    const Json* links = entry.find("links");
    if (!links || !links->as_list() || links->as_list()->empty()) refuse("an entry has no links");
    for (const Json& link : *links->as_list()) {
      if (!link.as_string()) refuse("an entry has no links");
      links_.insert(fabric.link(*link.as_string()));
    }
  }
}

std::vector<std::uint32_t> Denylist::denied(const FabricHost& fabric, const wire::Address& address) const {
  const std::uint32_t to = fabric.host_at(0, address), paths = fabric.path_count(to), planes = fabric.plane_count();
  std::vector<std::uint32_t> found;
  for (std::uint32_t path = 0; path < paths; ++path)
    for (std::uint32_t plane = 0; plane < planes; ++plane)
      if (std::ranges::any_of(fabric.links(plane, to, path),
                              [&](const std::string& link) { return links_.contains(link); }))
        found.push_back(path * planes + plane);
  return found.size() < paths * planes ? found : std::vector<std::uint32_t>{};
}

}  // namespace softmrc::host
