// Files that hold what other users are not to read, or to have put there: captures and keys.
// `softmrc._support.files.open_own` is the same for Python.
#pragma once

#include <string>

namespace softmrc::udp {

enum class OpenMode { truncate, append };

// A descriptor to write to, which never blocks; -1 with errno, and in `why` what to tell people. The file is made with
// mode 0600. One that is there must be this user's own regular file, or a character device, and no symbolic link. One
// that others may open is replaced if it is to be new, since another user may have it open, and refused if it cannot
// be, or is to be appended to. A descriptor that was handed to this process, as /dev/stdout names one, is taken as it
// is.
int open_private_file(const std::string& path, OpenMode begins, std::string& why);

}  // namespace softmrc::udp
