#include "udp/own_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

namespace softmrc::udp {
namespace {

bool is_handed(std::string_view path) {
  if (path == "/dev/stdin" || path == "/dev/stdout" || path == "/dev/stderr") return true;
  for (const std::string_view folder : {"/dev/fd/", "/proc/self/fd/"})
    if (path.starts_with(folder) && path.size() > folder.size())
      return path.find_first_not_of("0123456789", folder.size()) == path.npos;
  return false;
}

// Empty: nothing.
std::string what_is_wrong(int fd, const struct stat& about, Begins begins) {
  if (!S_ISREG(about.st_mode)) return S_ISCHR(about.st_mode) ? "" : "it is no regular file";
  if (about.st_uid != geteuid()) return "it is another user's";
  if (begins == Begins::at_end) return about.st_mode & 077 ? "others may open it: chmod 600" : "";
  // It may fail: some file systems have one mode for all files.
  [[maybe_unused]] const int rc = about.st_mode & 077 ? fchmod(fd, 0600) : 0;
  return "";
}

int not_opened(int fd, int error, std::string& why, std::string reason) {
  if (fd >= 0) close(fd);
  errno = error;
  why = std::move(reason);
  return -1;
}

}  // namespace

int open_own(const std::string& path, Begins begins, std::string& why) {
  const int flags = O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | (begins == Begins::at_end ? O_APPEND : 0);
  const bool is_ours = is_handed(path);
  if (!is_ours) {
    const int made = open(path.c_str(), flags | O_CREAT | O_EXCL, 0600);
    if (made >= 0) return made;
    if (errno != EEXIST) return not_opened(-1, errno, why, std::strerror(errno));
  }
  const int fd = open(path.c_str(), flags | (is_ours ? 0 : O_NOFOLLOW));
  if (fd < 0 && errno == ELOOP) return not_opened(fd, EPERM, why, "it is a symbolic link");
  if (fd < 0 && errno == ENXIO) return not_opened(fd, EPERM, why, "it is no regular file");  // a pipe that nobody reads
  struct stat about {};
  if (fd < 0 || fstat(fd, &about) != 0) return not_opened(fd, errno, why, std::strerror(errno));
  if (std::string wrong = is_ours ? "" : what_is_wrong(fd, about, begins); !wrong.empty())
    return not_opened(fd, EPERM, why, std::move(wrong));
  if (begins == Begins::anew && S_ISREG(about.st_mode) && ftruncate(fd, 0) != 0)
    return not_opened(fd, errno, why, std::strerror(errno));
  return fd;
}

}  // namespace softmrc::udp
