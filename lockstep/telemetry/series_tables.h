// Curves in the SQLite store: the newest steps as they came (one row each), older ones packed by series into chunks
// with summaries, and of the oldest the summaries only (docs/reference/run-store.md: Retention).
//
// Writing members are called inside the caller's transaction; reading ones open a snapshot of their own.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/telemetry/buckets.h"
#include "lockstep/telemetry/sqlite.h"

namespace lockstep::telemetry {

// What is kept of one series beyond its newest rows.
struct Retention {
  bool whole = false;    // every point, for ever
  int with_points = 0;   // chunks that keep their points
  int of_one_level = 0;  // chunks of one resolution before the oldest four become one of the next

  static Retention of(std::string_view metric, int rank, int world);
};

inline constexpr int kChunkPoints = 512;
inline constexpr int kSummaryPoints = 16;  // of one summary of a chunk whose points are new

class SeriesTables {
 public:
  struct Key {
    std::int64_t run = 0, name = 0;  // numbers
    int rank = 0;
    bool operator==(const Key&) const = default;
    bool operator<(const Key& other) const {
      return std::tie(run, name, rank) < std::tie(other.run, other.name, other.rank);
    }
  };
  using Value = std::pair<std::int64_t, double>;  // number of the name, value

  explicit SeriesTables(Database& database);

  // Records a step; packs what the rank has recorded so far when that has become much.
  void add(std::int64_t run, int rank, std::int64_t step, double time, std::span<const Value> values);
  // Packs all rows of the run.
  void pack(std::int64_t run);
  // Puts points into chunks at once, without rows: steps that are there are replaced.
  void append(const Key& key, std::vector<Point> points);
  // After a rollback: what was remembered of the tables may not be so.
  void forget();

  std::vector<int> ranks(std::int64_t run, std::int64_t name) const;
  std::vector<std::int64_t> names(std::int64_t run) const;
  std::optional<std::int64_t> last_step(const Key& key) const;
  // By step, at most `limit`, after `after_step`.
  std::vector<Point> points(const Key& key, std::int64_t after_step, std::size_t limit) const;
  void fill(BucketGrid& grid, const Key& key) const;

 private:
  struct Chunk {
    std::int64_t series = 0, points_number = 0;  // 0: the points are not kept
    int level = 0;
    Bucket total;
    std::string summaries;
  };
  struct Unpacked {
    int rows = 0;
    std::int64_t values = 0;
  };

  std::optional<std::int64_t> series_of(const Key& key) const;
  std::int64_t series_made(const Key& key);
  void pack(std::int64_t run, int rank);
  void append(std::int64_t series, std::vector<Point> points, const Retention& retention);
  void replace(std::int64_t series, std::span<const Point> points, const Retention& retention);
  std::vector<Point> take_back(std::int64_t series, std::int64_t from, std::int64_t to, const Retention& retention);
  void write_chunk(std::int64_t series, std::span<const Point> points, const Retention& retention);
  void insert(const Chunk& chunk);
  void remove(const Chunk& chunk);
  void thin(std::int64_t series, const Retention& retention);
  void drop_points(const Chunk& chunk);
  void merge(std::span<const Chunk> chunks, const Retention& retention);
  // Chunks that hold a step of from..to, by step, until `take` returns false; `summaries`: with theirs.
  template <class Take>
  void for_each_chunk(std::int64_t series, std::int64_t from, std::int64_t to, bool summaries, const Take& take) const;
  std::vector<Point> points_of(const Chunk& chunk) const;
  std::vector<Point> newest_rows(const Key& key, std::int64_t after_step) const;

  Database& database_;
  Statement insert_step_;
  Statement insert_chunk_;
  Statement insert_points_;
  Statement last_chunk_;
  mutable Statement chunk_rows_;
  mutable Statement point_row_;
  std::map<std::pair<std::int64_t, int>, Unpacked> unpacked_;  // by run and rank: since the last packing
  std::map<Key, std::int64_t> series_;
};

}  // namespace lockstep::telemetry
