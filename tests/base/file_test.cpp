#include "lockstep/base/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <random>
#include <thread>

#include "expect_user_error.h"
#include "lockstep/base/crc32c.h"

namespace lockstep {
namespace {

using testing::user_error;
namespace fs = std::filesystem;

TEST(File, what_is_written_is_read_back) {
  const TemporaryFolder folder;
  std::string bytes(100'001, '\0');
  std::mt19937 random(3);
  for (char& c : bytes) c = static_cast<char>(random());
  for (const std::string& content : {bytes, std::string(), std::string("\0", 1)}) {
    write_file_atomically(folder.path() / "f", content);
    EXPECT_EQ(read_file(folder.path() / "f"), content);
  }
}

TEST(File, a_file_above_the_cap_is_refused_and_one_at_the_cap_is_not) {
  const TemporaryFolder folder;
  write_file_atomically(folder.path() / "f", std::string(1000, 'x'));
  EXPECT_EQ(read_file(folder.path() / "f", 1000).size(), 1000u);
  EXPECT_HAS(user_error([&] { read_file(folder.path() / "f", 999); }), "larger than");
  // A sparse file of 1 TiB: the size is judged before anything is allocated.
  std::ofstream(folder.path() / "sparse");
  fs::resize_file(folder.path() / "sparse", std::uintmax_t{1} << 40);
  user_error([&] { read_file(folder.path() / "sparse"); });
}

TEST(File, missing_files_and_folders_are_environment_errors) {
  const TemporaryFolder folder;
  EXPECT_HAS(user_error([&] { read_file(folder.path() / "none"); }, ExitCode::kEnvironment), "none");
  EXPECT_HAS(user_error([&] { read_file(folder.path()); }, ExitCode::kEnvironment), "is a folder");
  user_error([&] { write_file_atomically(folder.path() / "no" / "f", "x"); }, ExitCode::kEnvironment);
}

TEST(File, files_that_do_not_know_their_size_are_read) { EXPECT_FALSE(read_file("/proc/self/status").empty()); }

TEST(File, a_pipe_without_a_writer_does_not_block) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder.path() / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(read_file(folder.path() / "fifo"), "");
}

TEST(File, atomic_writes_leave_no_temporary_files_and_keep_permissions) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "f";
  write_file_atomically(path, "a");
  fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
  write_file_atomically(path, "b");
  EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  fs::create_directory(folder.path() / "d");
  std::ofstream(folder.path() / "d" / "x") << "x";
  user_error([&] { write_file_atomically(folder.path() / "d", "x"); }, ExitCode::kEnvironment);  // rename over a folder
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 2);
}

TEST(File, a_reader_never_sees_half_a_write) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "f";
  const std::string a(200'000, 'a'), b(200'000, 'b');
  write_file_atomically(path, a);
  std::thread writer([&] {
    for (int i = 0; i < 20; ++i) write_file_atomically(path, i % 2 == 0 ? b : a);
  });
  for (int i = 0; i < 200; ++i) {
    const std::string seen = read_file(path);
    EXPECT_TRUE(seen == a || seen == b);
  }
  writer.join();
}

TEST(Crc32c, matches_the_published_vectors) {
  // RFC 3720, appendix B.4.
  EXPECT_EQ(crc32c("123456789", 9), 0xe3069283u);
  const std::string zeros(32, '\0'), ones(32, '\xff');
  EXPECT_EQ(crc32c(zeros.data(), 32), 0x8a9136aau);
  EXPECT_EQ(crc32c(ones.data(), 32), 0x62a8ab43u);
  EXPECT_EQ(crc32c(nullptr, 0), 0u);
}

TEST(Crc32c, tables_and_instruction_agree_at_every_length_and_alignment) {
  std::string bytes(300, '\0');
  std::mt19937 random(5);
  for (char& c : bytes) c = static_cast<char>(random());
  for (std::size_t start = 0; start < 9; ++start) {
    for (std::size_t size = 0; size + start < bytes.size(); ++size) {
      ASSERT_EQ(crc32c(bytes.data() + start, size, 77), crc32c_with_tables(bytes.data() + start, size, 77)) << size;
    }
  }
}

TEST(Crc32c, continues_from_a_seed) { EXPECT_EQ(crc32c("56789", 5, crc32c("1234", 4)), crc32c("123456789", 9)); }

TEST(File, a_hostile_name_stays_on_one_line_of_a_message) {
  try {
    read_file("/no/such\nfile\x01");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("/no/such\\x0afile\\x01"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace lockstep
