#include "udp/private_file.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
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

constexpr mode_t others = 077;
constexpr std::string_view of_all = "others may open it, as any file of its file system";

// Empty: nothing.
std::string what_is_wrong(const struct stat& about, OpenMode begins) {
  if (!S_ISREG(about.st_mode)) return S_ISCHR(about.st_mode) ? "" : "it is no regular file";
  if (about.st_uid != geteuid()) return "it is another user's";
  return begins == OpenMode::append && about.st_mode & others ? "others may open it: chmod 600" : "";
}

int not_opened(int fd, int error, std::string& why, std::string reason) {
  if (fd >= 0) close(fd);
  why = std::move(reason);
  errno = error;
  return -1;
}

int not_opened(int fd, int error, std::string& why) { return not_opened(fd, error, why, std::strerror(error)); }

// -1 with EEXIST where there is something already. The file is given its name, if that is another, once no other user
// may open it.
int make(const std::string& path, int flags, std::string& why, const std::string& name = "") {
  const int fd = open(path.c_str(), flags | O_CREAT | O_EXCL, 0600);
  if (fd < 0) return not_opened(fd, errno, why);
  struct stat about{};
  int error = fstat(fd, &about) == 0 ? 0 : errno;
  const bool is_of_all = !error && about.st_mode & others;
  if (!error && !is_of_all && !name.empty() && std::rename(path.c_str(), name.c_str()) != 0) error = errno;
  if (!error && !is_of_all) return fd;
  unlink(path.c_str());
  return is_of_all ? not_opened(fd, EPERM, why, std::string(of_all)) : not_opened(fd, error, why);
}

// A new file takes the place of the old one in one step; that one stays where it cannot.
int replace(const std::string& path, int flags, std::string& why) {
  std::uint32_t bits = 0;
  if (getrandom(&bits, sizeof bits, 0) != sizeof bits) return not_opened(-1, errno, why);
  const int fd = make(path + "." + std::to_string(bits), flags, why, path);
  if (fd < 0 && why != of_all)
    return not_opened(fd, errno, why,
                      "others may open it, and it cannot be replaced (" + why + "): chmod 600 it first");
  return fd;
}

// What this process was handed is taken as it is.
int open_handed(const std::string& path, int flags, OpenMode begins, std::string& why) {
  const int fd = open(path.c_str(), flags);
  struct stat about{};
  if (fd < 0 || fstat(fd, &about) != 0) return not_opened(fd, errno, why);
  if (begins == OpenMode::truncate && S_ISREG(about.st_mode) && ftruncate(fd, 0) != 0)
    return not_opened(fd, errno, why);
  return fd;
}

}  // namespace

int open_private_file(const std::string& path, OpenMode begins, std::string& why) {
  const int flags = O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | (begins == OpenMode::append ? O_APPEND : 0);
  if (is_handed(path)) return open_handed(path, flags, begins, why);
  if (const int made = make(path, flags, why); made >= 0 || errno != EEXIST) return made;
  const int fd = open(path.c_str(), flags | O_NOFOLLOW);
  if (fd < 0 && errno == ELOOP) return not_opened(fd, EPERM, why, "it is a symbolic link");
  if (fd < 0 && errno == ENXIO) return not_opened(fd, EPERM, why, "it is no regular file");  // a pipe without a reader
  struct stat about{};
  if (fd < 0 || fstat(fd, &about) != 0) return not_opened(fd, errno, why);
  if (std::string wrong = what_is_wrong(about, begins); !wrong.empty())
    return not_opened(fd, EPERM, why, std::move(wrong));
  if (begins == OpenMode::append || !S_ISREG(about.st_mode)) return fd;
  if (about.st_mode & others) {  // another user may have it open
    close(fd);
    return replace(path, flags, why);
  }
  return ftruncate(fd, 0) == 0 ? fd : not_opened(fd, errno, why);
}

}  // namespace softmrc::udp
