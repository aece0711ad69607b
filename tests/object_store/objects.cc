// A file system plugin for TensorFlow with the semantics of an object store.
//
// objects://BUCKET/NAME is the file $OBJECTS_ROOT/BUCKET/QUOTED_NAME. As with
// TensorFlow's own client of gs:// (tsl/platform/cloud/gcs_file_system.cc):
//   - there are no directories, but the beginnings of names that end in "/";
//     `mkdir` writes an empty object "NAME/" or, with OBJECTS_MARKERS=0, nothing
//   - an object appears, or is replaced, as a whole when its writer is flushed
//     or closed
//   - renaming copies and deletes object by object, and may end halfway
//   - listings are complete, and in the order of names
// Unlike there, an object cannot be appended to: that would be a download.
//
// `objects_allow(n)` lets n changes succeed, and refuses all later ones. With
// OBJECTS_DIE_AT=n the process ends with SIGKILL in place of the n-th change.

#include <dirent.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tensorflow/c/experimental/filesystem/filesystem_interface.h"
#include "tensorflow/c/tf_file_statistics.h"
#include "tensorflow/c/tf_status.h"

namespace {

const char kScheme[] = "objects://";

std::mutex changes;
long changed = 0;
long allowed = -1;  // How many changes succeed; negative for all.
bool dies = false;

bool Refused(TF_Status* status) {
  std::lock_guard<std::mutex> lock(changes);
  if (allowed >= 0 && changed >= allowed) {
    if (dies) kill(getpid(), SIGKILL);
    TF_SetStatus(status, TF_UNAVAILABLE, "the store does not answer");
    return true;
  }
  ++changed;
  return false;
}

std::string Root() {
  const char* root = getenv("OBJECTS_ROOT");
  return root ? root : "/nonexistent";
}

std::string Quoted(const std::string& name) {
  std::string quoted;
  char hex[4];
  for (unsigned char c : name) {
    if (isalnum(c) || strchr("._-", c)) {
      quoted += c;
    } else {
      snprintf(hex, sizeof hex, "%%%02X", c);
      quoted += hex;
    }
  }
  return quoted;
}

std::string Unquoted(const std::string& quoted) {
  std::string name;
  for (size_t i = 0; i < quoted.size(); ++i) {
    if (quoted[i] == '%') {
      name += static_cast<char>(std::stoi(quoted.substr(i + 1, 2), nullptr, 16));
      i += 2;
    } else {
      name += quoted[i];
    }
  }
  return name;
}

struct Path {
  std::string bucket, name;

  explicit Path(const std::string& uri) {
    std::string rest = uri.substr(0, sizeof kScheme - 1) == kScheme
                           ? uri.substr(sizeof kScheme - 1)
                           : uri;
    size_t slash = rest.find('/');
    bucket = rest.substr(0, slash);
    if (slash != std::string::npos) name = rest.substr(slash + 1);
  }

  std::string Folder() const { return Root() + "/" + bucket; }
  std::string File(const std::string& object) const {
    return Folder() + "/" + Quoted(object);
  }
  std::string File() const { return File(name); }
  std::string Prefix() const {
    return name.empty() || name.back() == '/' ? name : name + "/";
  }
  bool HasBucket() const { return access(Folder().c_str(), F_OK) == 0; }
  bool IsObject() const {
    return !name.empty() && access(File().c_str(), F_OK) == 0;
  }

  // The names of objects that begin so, in order.
  std::vector<std::string> Beginning(const std::string& prefix) const {
    std::vector<std::string> found;
    if (DIR* folder = opendir(Folder().c_str())) {
      while (dirent* entry = readdir(folder)) {
        if (entry->d_name[0] == '.') continue;
        std::string object = Unquoted(entry->d_name);
        if (object.compare(0, prefix.size(), prefix) == 0)
          found.push_back(object);
      }
      closedir(folder);
    }
    std::sort(found.begin(), found.end());
    return found;
  }

  bool IsFolder() const {
    return name.empty() ? HasBucket() : !Beginning(Prefix()).empty();
  }
};

void NotFound(TF_Status* status, const std::string& what) {
  TF_SetStatus(status, TF_NOT_FOUND, (what + " was not found").c_str());
}

// Whole, under a name that no listing shows, and then under its own.
void Put(const Path& path, const std::string& object,
         const std::string& content, TF_Status* status) {
  if (!path.HasBucket()) return NotFound(status, "the bucket " + path.bucket);
  if (object.empty())
    return TF_SetStatus(status, TF_INVALID_ARGUMENT, "no object's name");
  if (Refused(status)) return;
  std::string beside = path.Folder() + "/.upload-XXXXXX";
  int file = mkstemp(&beside[0]);
  bool done = file >= 0 && write(file, content.data(), content.size()) ==
                               static_cast<ssize_t>(content.size());
  if (file >= 0) close(file);
  if (!done || rename(beside.c_str(), path.File(object).c_str()) != 0)
    return TF_SetStatus(status, TF_INTERNAL, strerror(errno));
  TF_SetStatus(status, TF_OK, "");
}

void Delete(const Path& path, const std::string& object, TF_Status* status) {
  if (Refused(status)) return;
  if (unlink(path.File(object).c_str()) != 0) return NotFound(status, object);
  TF_SetStatus(status, TF_OK, "");
}

std::string Content(const std::string& file) {
  std::string content;
  char chunk[1 << 16];
  int descriptor = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  ssize_t size;
  while ((size = read(descriptor, chunk, sizeof chunk)) > 0)
    content.append(chunk, size);
  close(descriptor);
  return content;
}

struct Writer {
  Path path;
  std::string content;
  bool changed = true;  // An empty object, too, is written.
  bool closed = false;
};

Writer* writer(const TF_WritableFile* file) {
  return static_cast<Writer*>(file->plugin_file);
}

void Append(const TF_WritableFile* file, const char* buffer, size_t n,
            TF_Status* status) {
  writer(file)->content.append(buffer, n);
  writer(file)->changed = true;
  TF_SetStatus(status, TF_OK, "");
}

int64_t Tell(const TF_WritableFile* file, TF_Status* status) {
  TF_SetStatus(status, TF_OK, "");
  return writer(file)->content.size();
}

void Sync(const TF_WritableFile* file, TF_Status* status) {
  Writer* self = writer(file);
  TF_SetStatus(status, TF_OK, "");
  if (!self->changed) return;
  Put(self->path, self->path.name, self->content, status);
  if (TF_GetCode(status) == TF_OK) self->changed = false;
}

void Close(const TF_WritableFile* file, TF_Status* status) {
  Sync(file, status);
  writer(file)->closed = true;
}

void CleanupWriter(TF_WritableFile* file) {
  if (!writer(file)->closed) {
    TF_Status* ignored = TF_NewStatus();
    Close(file, ignored);
    TF_DeleteStatus(ignored);
  }
  delete writer(file);
}

void CleanupReader(TF_RandomAccessFile* file) {
  close(static_cast<int>(reinterpret_cast<intptr_t>(file->plugin_file)));
}

int64_t Read(const TF_RandomAccessFile* file, uint64_t offset, size_t n,
             char* buffer, TF_Status* status) {
  int descriptor =
      static_cast<int>(reinterpret_cast<intptr_t>(file->plugin_file));
  int64_t done = 0;
  ssize_t size = 1;
  while (n > 0 && (size = pread(descriptor, buffer + done, n, offset)) > 0) {
    done += size;
    offset += size;
    n -= size;
  }
  TF_SetStatus(status, n == 0 ? TF_OK : size ? TF_INTERNAL : TF_OUT_OF_RANGE,
               "");
  return done;
}

void Init(TF_Filesystem*, TF_Status* status) {
  if (const char* at = getenv("OBJECTS_DIE_AT")) {
    dies = true;
    allowed = atol(at) - 1;
  }
  TF_SetStatus(status, TF_OK, "");
}

void Cleanup(TF_Filesystem*) {}

void NewReader(const TF_Filesystem*, const char* uri, TF_RandomAccessFile* file,
               TF_Status* status) {
  Path path(uri);
  int descriptor =
      path.IsObject() ? open(path.File().c_str(), O_RDONLY | O_CLOEXEC) : -1;
  if (descriptor < 0) return NotFound(status, uri);
  file->plugin_file = reinterpret_cast<void*>(intptr_t{descriptor});
  TF_SetStatus(status, TF_OK, "");
}

void NewWriter(const TF_Filesystem*, const char* uri, TF_WritableFile* file,
               TF_Status* status) {
  file->plugin_file = new Writer{Path(uri)};
  TF_SetStatus(status, TF_OK, "");
}

void NewAppender(const TF_Filesystem*, const char*, TF_WritableFile*,
                 TF_Status* status) {
  TF_SetStatus(status, TF_UNIMPLEMENTED, "objects cannot be appended to");
}

void CreateDir(const TF_Filesystem*, const char* uri, TF_Status* status) {
  Path path(uri);
  if (!path.HasBucket()) return NotFound(status, "the bucket " + path.bucket);
  if (path.name.empty()) return TF_SetStatus(status, TF_OK, "");
  if (path.IsFolder())
    return TF_SetStatus(status, TF_ALREADY_EXISTS, "already exists");
  const char* markers = getenv("OBJECTS_MARKERS");
  if (markers && !strcmp(markers, "0")) return TF_SetStatus(status, TF_OK, "");
  Put(path, path.Prefix(), "", status);
}

void CreateDirs(const TF_Filesystem* system, const char* uri,
                TF_Status* status) {
  CreateDir(system, uri, status);
  if (TF_GetCode(status) == TF_ALREADY_EXISTS) TF_SetStatus(status, TF_OK, "");
}

void DeleteObject(const TF_Filesystem*, const char* uri, TF_Status* status) {
  Path path(uri);
  Delete(path, path.name, status);
}

void DeleteDir(const TF_Filesystem*, const char* uri, TF_Status* status) {
  Path path(uri);
  std::vector<std::string> found = path.Beginning(path.Prefix());
  TF_SetStatus(status, TF_OK, "");
  if (found.size() > 1 || (found.size() == 1 && found[0] != path.Prefix()))
    return TF_SetStatus(status, TF_FAILED_PRECONDITION, "it is not empty");
  if (!found.empty()) Delete(path, found[0], status);
}

void DeleteAll(const TF_Filesystem*, const char* uri, uint64_t* files,
               uint64_t* folders, TF_Status* status) {
  Path path(uri);
  *files = *folders = 0;
  TF_SetStatus(status, TF_OK, "");
  for (const std::string& object : path.Beginning(path.Prefix())) {
    Delete(path, object, status);
    if (TF_GetCode(status) != TF_OK) ++*files;
  }
}

void Move(const Path& from, const std::string& object, const Path& to,
          const std::string& target, TF_Status* status) {
  if (access(from.File(object).c_str(), F_OK) != 0)
    return NotFound(status, object);
  Put(to, target, Content(from.File(object)), status);
  if (TF_GetCode(status) == TF_OK) Delete(from, object, status);
}

void Rename(const TF_Filesystem*, const char* source, const char* target,
            TF_Status* status) {
  Path from(source), to(target);
  if (!from.IsFolder()) return Move(from, from.name, to, to.name, status);
  TF_SetStatus(status, TF_OK, "");
  for (const std::string& object : from.Beginning(from.Prefix())) {
    std::string rest = object.substr(from.Prefix().size());
    Move(from, object, to, to.Prefix() + rest, status);
    if (TF_GetCode(status) != TF_OK) return;
  }
}

void Stat(const TF_Filesystem*, const char* uri, TF_FileStatistics* found,
          TF_Status* status) {
  Path path(uri);
  struct stat file;
  *found = {0, 0, false};
  TF_SetStatus(status, TF_OK, "");
  if (path.IsObject() && stat(path.File().c_str(), &file) == 0) {
    found->length = file.st_size;
    found->mtime_nsec = file.st_mtime * 1000000000LL;
    found->is_directory = path.name.back() == '/';
  } else if (path.IsFolder()) {
    found->is_directory = true;
  } else {
    NotFound(status, uri);
  }
}

void Exists(const TF_Filesystem* system, const char* uri, TF_Status* status) {
  TF_FileStatistics ignored;
  Stat(system, uri, &ignored, status);
}

char* TranslateName(const TF_Filesystem*, const char* uri) {
  return strdup(uri);
}

int Entries(const std::vector<std::string>& names, char*** entries,
            TF_Status* status) {
  *entries = static_cast<char**>(calloc(names.size() + 1, sizeof(char*)));
  for (size_t i = 0; i < names.size(); ++i)
    (*entries)[i] = strdup(names[i].c_str());
  TF_SetStatus(status, TF_OK, "");
  return names.size();
}

int Children(const TF_Filesystem*, const char* uri, char*** entries,
             TF_Status* status) {
  Path path(uri);
  std::set<std::string> names;
  for (const std::string& object : path.Beginning(path.Prefix())) {
    std::string rest = object.substr(path.Prefix().size());
    // Folders end in a slash, as those of gs:// do.
    size_t slash = rest.find('/');
    if (slash != std::string::npos) rest.resize(slash + 1);
    if (!rest.empty()) names.insert(rest);
  }
  return Entries({names.begin(), names.end()}, entries, status);
}

int Matching(const TF_Filesystem*, const char* pattern, char*** entries,
             TF_Status* status) {
  Path path(pattern);
  std::set<std::string> names;
  for (const std::string& object : path.Beginning("")) {
    if (fnmatch(path.name.c_str(), object.c_str(), FNM_PATHNAME) == 0)
      names.insert(kScheme + path.bucket + "/" + object);
  }
  return Entries({names.begin(), names.end()}, entries, status);
}

}  // namespace

extern "C" void objects_allow(long count) {
  std::lock_guard<std::mutex> lock(changes);
  changed = 0;
  allowed = count;
}

extern "C" long objects_changed() {
  std::lock_guard<std::mutex> lock(changes);
  return changed;
}

void TF_InitPlugin(TF_FilesystemPluginInfo* info) {
  info->plugin_memory_allocate = [](size_t size) { return calloc(1, size); };
  info->plugin_memory_free = [](void* memory) { free(memory); };
  info->num_schemes = 1;
  auto* ops = static_cast<TF_FilesystemPluginOps*>(
      calloc(1, sizeof(TF_FilesystemPluginOps)));
  info->ops = ops;
  TF_SetFilesystemVersionMetadata(ops);
  ops->scheme = strdup("objects");

  auto* reader = static_cast<TF_RandomAccessFileOps*>(
      calloc(1, TF_RANDOM_ACCESS_FILE_OPS_SIZE));
  reader->cleanup = CleanupReader;
  reader->read = Read;
  ops->random_access_file_ops = reader;

  auto* writes =
      static_cast<TF_WritableFileOps*>(calloc(1, TF_WRITABLE_FILE_OPS_SIZE));
  writes->cleanup = CleanupWriter;
  writes->append = Append;
  writes->tell = Tell;
  writes->flush = Sync;
  writes->sync = Sync;
  writes->close = Close;
  ops->writable_file_ops = writes;

  auto* files =
      static_cast<TF_FilesystemOps*>(calloc(1, TF_FILESYSTEM_OPS_SIZE));
  files->init = Init;
  files->cleanup = Cleanup;
  files->new_random_access_file = NewReader;
  files->new_writable_file = NewWriter;
  files->new_appendable_file = NewAppender;
  files->create_dir = CreateDir;
  files->recursively_create_dir = CreateDirs;
  files->delete_file = DeleteObject;
  files->delete_dir = DeleteDir;
  files->delete_recursively = DeleteAll;
  files->rename_file = Rename;
  files->path_exists = Exists;
  files->stat = Stat;
  files->translate_name = TranslateName;
  files->get_children = Children;
  files->get_matching_paths = Matching;
  ops->filesystem_ops = files;
}
