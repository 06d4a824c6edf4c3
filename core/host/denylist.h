// The directed links that nodes must not use, by name, from the file that `softmrc mapper` writes. As
// softmrc/fabric/denylist.py.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "host/fabric_host.h"

namespace softmrc::host {

class Denylist {
 public:
  // `name` is the file's, for what is said of it. Throws HostError where it is none, or names what the fabric does not
  // have.
  Denylist(std::string_view text, const std::string& name, const FabricHost& fabric);

  // Which paths to the host that has this address in plane 0 cross such a link, by their numbers: the first path of
  // every plane, then the second. None, if it would be all of them: a bad path is better than none.
  std::vector<std::uint32_t> denied(const FabricHost& fabric, const wire::Address& address) const;

 private:
  std::set<std::string> links_;
};

}  // namespace softmrc::host
