#include "lockstep/telemetry/series_tables.h"

#include <algorithm>
#include <array>
#include <limits>

#include "lockstep/telemetry/series_codec.h"

namespace lockstep::telemetry {
namespace {

// Rows of one rank before they are packed: a chunk's worth, or less where a step records very many metrics.
constexpr std::int64_t kUnpackedValues = 1 << 19;
constexpr std::array<int, 4> kMerged = {};  // chunks that become one of the next level
// A summary goes whole into one column of a chart; with four to a column its ends are off by a quarter at most.
constexpr std::int64_t kSummariesPerColumn = 4;
constexpr auto kLastStep = std::numeric_limits<std::int64_t>::max();

// By step; of a step that was recorded twice the last counts.
void settle(std::vector<Point>& points) {
  const auto by_step = [](const Point& a, const Point& b) { return a.step < b.step; };
  if (!std::is_sorted(points.begin(), points.end(), by_step)) std::stable_sort(points.begin(), points.end(), by_step);
  const auto same = [](const Point& a, const Point& b) { return a.step == b.step; };
  points.erase(points.begin(), std::unique(points.rbegin(), points.rend(), same).base());
}

std::vector<Bucket> summaries_of(std::span<const Point> points) {
  std::vector<Bucket> single;
  single.reserve(points.size());
  for (const Point& point : points) single.push_back(bucket_of(point));
  return joined(single, kSummaryPoints);
}

Bucket total_of(std::span<const Bucket> buckets) {
  return buckets.empty() ? Bucket{} : joined(buckets, buckets.size()).front();
}

// A summary where the points are gone: its mean stands for them.
Point stand_in(const Bucket& bucket) { return {bucket.last_step, bucket.time, bucket.mean}; }

}  // namespace

Retention Retention::of(std::string_view metric, int rank, int world) {
  // One loss that was not what it seemed is what people come back for.
  if (metric.ends_with("loss")) return {.whole = true};
  constexpr int kManyRanks = 8, kValuesOfAllRanks = 1024;
  if (rank == 0 || world <= kManyRanks) return {.with_points = 128, .of_one_level = 64};
  const int of_one_level = std::clamp(kValuesOfAllRanks / world, 4, 64);
  return {.with_points = std::max(2, of_one_level / 4), .of_one_level = of_one_level};
}

SeriesTables::SeriesTables(Database& database)
    : database_(database),
      insert_step_(database, "INSERT INTO steps (run, rank, step, time_ms, data) VALUES (?,?,?,?,?)"),
      insert_chunk_(database,
                    "INSERT OR REPLACE INTO chunks (series, first_step, last_step, level, points_number, time_ms, "
                    "points, finite, minimum, maximum, mean, summaries) VALUES (?,?,?,?,?,?,?,?,?,?,?,?)"),
      insert_points_(database, "INSERT INTO chunk_points (data) VALUES (?)"),
      last_chunk_(database,
                  "SELECT first_step, last_step, points, points_number FROM chunks WHERE series = ? "
                  "ORDER BY first_step DESC LIMIT 1"),
      // Chunks do not overlap, so the first one is the last that begins at or before the first step asked for.
      chunk_rows_(
          database,
          "SELECT first_step, last_step, level, points_number, time_ms, points, finite, minimum, maximum, mean, "
          "summaries FROM chunks WHERE series = ?1 AND first_step <= ?3 AND last_step >= ?2 AND first_step >= "
          "coalesce((SELECT max(first_step) FROM chunks WHERE series = ?1 AND first_step <= ?2), ?2) "
          "ORDER BY first_step"),
      point_row_(database, "SELECT data FROM chunk_points WHERE number = ?") {}

void SeriesTables::forget() {
  unpacked_.clear();
  series_.clear();
}

void SeriesTables::add(std::int64_t run, int rank, std::int64_t step, double time, std::span<const Value> values) {
  for (const auto& [name, value] : values) series_made({run, name, rank});
  insert_step_.bind(0, run)
      .bind(1, rank)
      .bind(2, step)
      .bind(3, to_milliseconds(time))
      .bind_bytes(4, encode_values(values))
      .run();
  Unpacked& unpacked = unpacked_[{run, rank}];
  unpacked.values += static_cast<std::int64_t>(values.size());
  if (++unpacked.rows < kChunkPoints && unpacked.values < kUnpackedValues) return;
  pack(run, rank);
}

void SeriesTables::pack(std::int64_t run) {
  std::vector<int> ranks;
  Statement next(database_, "SELECT rank FROM steps WHERE run = ? AND rank > ? ORDER BY rank LIMIT 1");
  next.bind(0, run).bind(1, std::int64_t{std::numeric_limits<int>::min()});
  while (next.step()) {
    ranks.push_back(static_cast<int>(next.integer(0)));
    next.reset();
    next.bind(1, ranks.back());
  }
  next.reset();
  for (const int rank : ranks) pack(run, rank);
}

void SeriesTables::pack(std::int64_t run, int rank) {
  std::map<std::int64_t, std::vector<Point>> by_name;
  {
    Statement rows(database_, "SELECT step, time_ms, data FROM steps WHERE run = ? AND rank = ? ORDER BY number");
    rows.bind(0, run).bind(1, rank);
    while (rows.step()) {
      const std::int64_t step = rows.integer(0);
      const double time = to_seconds(rows.integer(1));
      for_each_value(rows.view(2), [&](std::int64_t name, double value) {
        by_name[name].push_back({step, time, value});
      });
    }
  }
  for (auto& [name, points] : by_name) append({run, name, rank}, std::move(points));
  Statement(database_, "DELETE FROM steps WHERE run = ? AND rank = ?").bind(0, run).bind(1, rank).run();
  unpacked_[{run, rank}] = {};
}

void SeriesTables::append(const Key& key, std::vector<Point> points) {
  if (points.empty()) return;
  Statement word(database_,
                 "SELECT names.name, runs.world FROM names, runs WHERE names.number = ? AND runs.number = ?");
  word.bind(0, key.name).bind(1, key.run);
  Retention retention = Retention::of("", 0, 1);
  if (word.step()) retention = Retention::of(word.text(0), key.rank, static_cast<int>(word.integer(1)));
  append(series_made(key), std::move(points), retention);
}

void SeriesTables::append(std::int64_t series, std::vector<Point> points, const Retention& retention) {
  settle(points);
  const bool done_again = last_chunk_.bind(0, series).step() && last_chunk_.integer(1) >= points.front().step;
  last_chunk_.reset();
  const std::span<const Point> all(points);
  for (std::size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    end = done_again ? begin + 1 : all.size();
    // What lies between the steps done again and the newest stays as it is.
    while (end < all.size() && static_cast<std::uint64_t>(minus(all[end].step, all[end - 1].step)) <= kChunkPoints)
      ++end;
    replace(series, all.subspan(begin, end - begin), retention);
  }
  if (!retention.whole) thin(series, retention);
}

void SeriesTables::replace(std::int64_t series, std::span<const Point> points, const Retention& retention) {
  std::vector<Point> all = take_back(series, points.front().step, points.back().step, retention);
  all.insert(all.end(), points.begin(), points.end());
  settle(all);
  const std::span<const Point> left(all);
  for (std::size_t at = 0; at < all.size(); at += kChunkPoints)
    write_chunk(series, left.subspan(at, std::min<std::size_t>(kChunkPoints, all.size() - at)), retention);
}

// Takes back the last chunk, when there is room in it, and those that hold steps of from..to.
std::vector<Point> SeriesTables::take_back(std::int64_t series, std::int64_t from, std::int64_t to,
                                           const Retention& retention) {
  std::int64_t begin = from;
  if (last_chunk_.bind(0, series).step() && last_chunk_.integer(1) < from && last_chunk_.integer(2) < kChunkPoints &&
      last_chunk_.integer(3) != 0) {
    begin = last_chunk_.integer(0);
  }
  last_chunk_.reset();
  std::vector<Chunk> taken;
  for_each_chunk(series, begin, to, true, [&](const Chunk& chunk) {
    taken.push_back(chunk);
    return true;
  });
  std::vector<Point> points;
  for (Chunk& chunk : taken) {
    if (chunk.points_number != 0) {
      const auto own = points_of(chunk);
      points.insert(points.end(), own.begin(), own.end());
    }
    remove(chunk);
    if (chunk.points_number != 0) continue;
    // Steps done again long after: what was thinned stays on both sides of them.
    auto before = decode_buckets(chunk.summaries), after = before;
    std::erase_if(before, [&](const Bucket& bucket) { return bucket.last_step >= from; });
    std::erase_if(after, [&](const Bucket& bucket) { return bucket.first_step <= to; });
    for (const std::vector<Bucket>& kept : {before, after}) {
      if (!kept.empty()) insert({series, 0, chunk.level, total_of(kept), encode_buckets(kept, retention.whole)});
    }
  }
  return points;
}

void SeriesTables::write_chunk(std::int64_t series, std::span<const Point> points, const Retention& retention) {
  insert_points_.bind_bytes(0, encode_points(points)).run();
  const auto summaries = summaries_of(points);
  insert({series, database_.last_insert_id(), 0, total_of(summaries), encode_buckets(summaries, retention.whole)});
}

void SeriesTables::insert(const Chunk& chunk) {
  insert_chunk_.bind(0, chunk.series)
      .bind(1, chunk.total.first_step)
      .bind(2, chunk.total.last_step)
      .bind(3, chunk.level)
      .bind(4, chunk.points_number)
      .bind(5, to_milliseconds(chunk.total.time))
      .bind(6, chunk.total.points)
      .bind(7, chunk.total.finite)
      .bind(8, chunk.total.minimum)
      .bind(9, chunk.total.maximum)
      .bind(10, chunk.total.mean)
      .bind_bytes(11, chunk.summaries)
      .run();
}

void SeriesTables::remove(const Chunk& chunk) {
  if (chunk.points_number != 0)
    Statement(database_, "DELETE FROM chunk_points WHERE number = ?").bind(0, chunk.points_number).run();
  Statement(database_, "DELETE FROM chunks WHERE series = ? AND first_step = ?")
      .bind(0, chunk.series)
      .bind(1, chunk.total.first_step)
      .run();
}

void SeriesTables::drop_points(const Chunk& chunk) {
  Statement(database_, "DELETE FROM chunk_points WHERE number = ?").bind(0, chunk.points_number).run();
  Statement(database_, "UPDATE chunks SET points_number = 0 WHERE series = ? AND first_step = ?")
      .bind(0, chunk.series)
      .bind(1, chunk.total.first_step)
      .run();
}

void SeriesTables::thin(std::int64_t series, const Retention& retention) {
  std::vector<Chunk> chunks;
  constexpr auto kFirstStep = std::numeric_limits<std::int64_t>::min();
  for_each_chunk(series, kFirstStep, kLastStep, false, [&](const Chunk& chunk) {
    chunks.push_back(chunk);
    return true;
  });
  const std::size_t kept = static_cast<std::size_t>(retention.with_points);
  for (std::size_t i = 0; i + kept < chunks.size(); ++i) {
    if (chunks[i].points_number == 0) continue;
    drop_points(chunks[i]);
    chunks[i].points_number = 0;
  }
  const auto level_of = [](const Chunk& chunk) { return chunk.points_number == 0 ? chunk.level : -1; };
  int levels = 0;
  for (const Chunk& chunk : chunks) levels = std::max(levels, chunk.level + 1);
  for (int level = 0; level < levels; ++level) {
    const auto is_same = [&](const Chunk& chunk) { return level_of(chunk) == level; };
    if (std::count_if(chunks.begin(), chunks.end(), is_same) < retention.of_one_level + std::ssize(kMerged)) continue;
    // The oldest neighbours: after steps were done again, others may lie between.
    const auto first = std::search(chunks.begin(), chunks.end(), kMerged.begin(), kMerged.end(),
                                   [&](const Chunk& chunk, int) { return is_same(chunk); });
    if (first == chunks.end()) continue;
    merge({first, kMerged.size()}, retention);
    chunks.erase(first, first + std::ssize(kMerged));
  }
}

void SeriesTables::merge(std::span<const Chunk> chunks, const Retention& retention) {
  std::vector<Bucket> all;
  for (const Chunk& chunk : chunks) {
    Statement row(database_, "SELECT summaries FROM chunks WHERE series = ? AND first_step = ?");
    if (row.bind(0, chunk.series).bind(1, chunk.total.first_step).step()) {
      const auto own = decode_buckets(row.view(0));
      all.insert(all.end(), own.begin(), own.end());
    }
    row.reset();
    remove(chunk);
  }
  if (all.empty()) return;
  const auto fewer = joined(all, kMerged.size());
  insert({chunks.front().series, 0, chunks.front().level + 1, total_of(fewer), encode_buckets(fewer, retention.whole)});
}

// --- reading --------------------------------------------------------------------------------------------------------

std::optional<std::int64_t> SeriesTables::series_of(const Key& key) const {
  Statement find(database_, "SELECT number FROM series WHERE run = ? AND name = ? AND rank = ?");
  find.bind(0, key.run).bind(1, key.name).bind(2, key.rank);
  return find.step() ? std::optional(find.integer(0)) : std::nullopt;
}

std::int64_t SeriesTables::series_made(const Key& key) {
  if (const auto known = series_.find(key); known != series_.end()) return known->second;
  if (const auto found = series_of(key)) return series_[key] = *found;
  Statement(database_, "INSERT INTO series (run, name, rank) VALUES (?,?,?)")
      .bind(0, key.run)
      .bind(1, key.name)
      .bind(2, key.rank)
      .run();
  return series_[key] = database_.last_insert_id();
}

template <class Take>
void SeriesTables::for_each_chunk(std::int64_t series, std::int64_t from, std::int64_t to, bool summaries,
                                  const Take& take) const {
  Statement& rows = chunk_rows_;
  const Statement::Reset reset(rows);
  rows.bind(0, series).bind(1, from).bind(2, to);
  while (rows.step()) {
    Chunk chunk{series, rows.integer(3), static_cast<int>(rows.integer(2)), {}, {}};
    chunk.total = {rows.integer(0), rows.integer(1), to_seconds(rows.integer(4)),
                   rows.integer(5), rows.real(7),    rows.real(8),
                   rows.real(9),    rows.integer(6)};
    if (summaries) chunk.summaries = rows.view(10);
    if (!take(chunk)) return;
  }
}

std::vector<Point> SeriesTables::points_of(const Chunk& chunk) const {
  const Statement::Reset reset(point_row_);
  if (chunk.points_number != 0 && point_row_.bind(0, chunk.points_number).step())
    return decode_points(point_row_.view(0));
  std::vector<Point> points;
  for (const Bucket& bucket : decode_buckets(chunk.summaries)) points.push_back(stand_in(bucket));
  return points;
}

std::vector<Point> SeriesTables::newest_rows(const Key& key, std::int64_t after_step) const {
  Statement rows(database_,
                 "SELECT step, time_ms, data FROM steps WHERE run = ? AND rank = ? AND step > ? ORDER BY number");
  rows.bind(0, key.run).bind(1, key.rank).bind(2, after_step);
  std::vector<Point> points;
  while (rows.step()) {
    for_each_value(rows.view(2), [&](std::int64_t name, double value) {
      if (name == key.name) points.push_back({rows.integer(0), to_seconds(rows.integer(1)), value});
    });
  }
  settle(points);
  return points;
}

std::vector<int> SeriesTables::ranks(std::int64_t run, std::int64_t name) const {
  Statement rows(database_, "SELECT rank FROM series WHERE run = ? AND name = ? ORDER BY rank");
  rows.bind(0, run).bind(1, name);
  std::vector<int> ranks;
  while (rows.step()) ranks.push_back(static_cast<int>(rows.integer(0)));
  return ranks;
}

std::vector<std::int64_t> SeriesTables::names(std::int64_t run) const {
  // One index probe per name instead of a scan over all ranks.
  Statement next(database_, "SELECT name FROM series WHERE run = ? AND name > ? ORDER BY name LIMIT 1");
  std::vector<std::int64_t> names;
  next.bind(0, run).bind(1, std::int64_t{-1});
  while (next.step()) {
    names.push_back(next.integer(0));
    next.reset();
    next.bind(1, names.back());
  }
  return names;
}

std::optional<std::int64_t> SeriesTables::last_step(const Key& key) const {
  const Transaction snapshot(database_, Transaction::Kind::kRead);
  std::optional<std::int64_t> last;
  const auto series = series_of(key);
  if (!series) return last;
  Statement chunk(database_, "SELECT last_step FROM chunks WHERE series = ? ORDER BY first_step DESC LIMIT 1");
  if (chunk.bind(0, *series).step()) last = chunk.integer(0);
  const auto rows = newest_rows(key, last.value_or(std::numeric_limits<std::int64_t>::min()));
  return rows.empty() ? last : std::optional(rows.back().step);
}

std::vector<Point> SeriesTables::points(const Key& key, std::int64_t after_step, std::size_t limit) const {
  const Transaction snapshot(database_, Transaction::Kind::kRead);
  std::vector<Point> points;
  const auto series = series_of(key);
  if (!series || after_step == kLastStep) return points;
  for_each_chunk(*series, after_step + 1, kLastStep, true, [&](const Chunk& chunk) {
    for (const Point& point : points_of(chunk)) {
      if (point.step > after_step) points.push_back(point);
    }
    return points.size() < limit;
  });
  const auto rows = newest_rows(key, after_step);
  points.insert(points.end(), rows.begin(), rows.end());
  settle(points);
  if (points.size() > limit) points.resize(limit);
  return points;
}

void SeriesTables::fill(BucketGrid& grid, const Key& key) const {
  const Transaction snapshot(database_, Transaction::Kind::kRead);
  const auto series = series_of(key);
  if (!series || grid.empty()) return;
  const bool from_the_first = grid.first() == std::numeric_limits<std::int64_t>::min();
  const std::vector<Point> rows = newest_rows(key, from_the_first ? grid.first() : grid.first() - 1);
  auto row = rows.begin();
  const auto add = [&](const Bucket& part) {
    while (row != rows.end() && row->step < part.first_step) grid.add(*row++);
    const bool done_again = row != rows.end() && row->step <= part.last_step;
    if (!done_again && grid.covers(part.first_step, part.last_step)) grid.add(part);
  };
  for_each_chunk(*series, grid.first(), grid.last(), true, [&](const Chunk& chunk) {
    const Bucket& total = chunk.total;
    const auto steps = static_cast<std::uint64_t>(minus(total.last_step, total.first_step)) + 1;
    const auto summary = steps * kSummaryPoints / static_cast<std::uint64_t>(std::max<std::int64_t>(1, total.points));
    const auto column = static_cast<std::uint64_t>(grid.width()) / kSummariesPerColumn;
    const bool in_rows = !rows.empty() && rows.front().step <= total.last_step && rows.back().step >= total.first_step;
    const bool whole = !in_rows && grid.covers(total.first_step, total.last_step);
    if (whole && column >= steps) {
      add(total);
    } else if (chunk.points_number != 0 && (!whole || column < summary)) {
      for (const Point& point : points_of(chunk)) add(bucket_of(point));
    } else {
      for (const Bucket& bucket : decode_buckets(chunk.summaries)) add(bucket);
    }
    return true;
  });
  while (row != rows.end()) grid.add(*row++);
}

}  // namespace lockstep::telemetry
