#include "lockstep/planner/search/search.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <exception>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/planner/search/board.h"
#include "lockstep/planner/search/objective.h"
#include "lockstep/planner/search/request.h"
#include "lockstep/planner/search/space.h"
#include "lockstep/planner/selection.h"

namespace lockstep::planner {
namespace {

// What one thread keeps.
struct Board {
  Board(const SearchRequest& request, std::size_t worlds)
      : best(request.keep), nearest(request.keep), fronts(worlds), families(request) {}

  void merge(const Board& other) {
    for (const Entry& entry : other.best.entries()) best.add(entry);
    for (const Entry& entry : other.nearest.entries()) nearest.add(entry);
    for (std::size_t i = 0; i < fronts.size(); ++i) {
      for (const Entry& entry : other.fronts[i].entries()) fronts[i].add(entry);
    }
    families.merge(other.families);
    priced += other.priced;
    feasible += other.feasible;
    outgrown += other.outgrown;
  }

  BestEntries best;
  NearestEntries nearest;
  std::vector<Front> fronts;  // by place of the world
  Families families;
  std::int64_t priced = 0;
  std::int64_t feasible = 0;
  std::int64_t outgrown = 0;
};

// Calls work(worker, item) for every item, each once; items are handed out one at a time.
void for_each_in_parallel(std::size_t items, std::size_t workers,
                          const std::function<void(std::size_t worker, std::size_t item)>& work) {
  std::atomic<std::size_t> next{0};
  std::vector<std::exception_ptr> failures(workers);
  const auto run = [&](std::size_t worker) {
    try {
      for (std::size_t item = next++; item < items; item = next++) work(worker, item);
    } catch (...) {
      failures[worker] = std::current_exception();
      next = items;
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t worker = 1; worker < workers; ++worker) threads.emplace_back(run, worker);
  run(0);
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

double largest_capacity(const spec::Cluster& cluster) {
  double largest = 0;
  for (const spec::NodeGroup& group : cluster.groups) {
    if (group.device.memory_bytes <= 0) return 0;  // unknown: everything fits
    largest = std::max(largest, group.device.memory_bytes);
  }
  return largest;
}

class Search {
 public:
  explicit Search(const SearchRequest& request)
      : request_(request),
        space_(request),
        scorer_(request, space_.worlds()),
        pricer_(request.model, request.cluster, request.profile, pricer_options(request)),
        devices_per_node_(request.cluster.groups.front().devices_per_node),
        board_(request, space_.worlds().size()) {
    for (const char* name : {"enumerate", "divide", "floor", "outgrow", "price", "rank"}) {
      passes_.push_back({.name = name});
    }
  }

  SearchResult run() {
    if (request_.constraints.offload) {
      run_passes(std::array{*request_.constraints.offload});
    } else {
      run_passes(std::array{plan::Offload::kNone});
      if (board_.feasible == 0) run_passes(std::array{plan::Offload::kOptimizer, plan::Offload::kParameters});
    }
    if (meshes_.empty()) throw contradiction(request_);
    return rank();
  }

 private:
  enum Pass { kEnumerate, kDivide, kFloor, kOutgrow, kPrice, kRank };

  bool is_on(Pass pass) const {
    const auto& off = request_.switched_off;
    return std::find(off.begin(), off.end(), passes_[pass].name) == off.end();
  }

  void report(Pass pass, const Stopwatch& watch, std::int64_t in, std::int64_t out) {
    passes_[pass].seconds += watch.seconds();
    passes_[pass].in += in;
    passes_[pass].out += out;
  }

  void run_passes(std::span<const plan::Offload> offloads) {
    const std::size_t first = meshes_.size();
    enumerate(offloads);
    divide(first);
    floor(first);
    price(first);
  }

  void enumerate(std::span<const plan::Offload> offloads) {
    const Stopwatch watch;
    const std::vector<plan::Layout> found = space_.meshes(offloads);
    meshes_.insert(meshes_.end(), found.begin(), found.end());
    report(kEnumerate, watch, 0, static_cast<std::int64_t>(found.size()));
  }

  void divide(std::size_t first) {
    const Stopwatch watch;
    const auto begin = meshes_.begin() + static_cast<std::ptrdiff_t>(first);
    const auto in = meshes_.end() - begin;
    meshes_.erase(std::remove_if(begin, meshes_.end(),
                                 [&](const plan::Layout& mesh) { return space_.find_problem(mesh).has_value(); }),
                  meshes_.end());
    report(kDivide, watch, in, static_cast<std::int64_t>(meshes_.size() - first));
  }

  // Marks meshes whose floor is above every device's memory; none of their candidates can fit.
  void floor(std::size_t first) {
    const Stopwatch watch;
    above_floor_.resize(meshes_.size(), false);
    const double capacity = largest_capacity(request_.cluster);
    std::int64_t out = static_cast<std::int64_t>(meshes_.size() - first);
    for (std::size_t i = first; i < meshes_.size(); ++i) {
      candidates_ += space_.count(meshes_[i]);
      if (!is_on(kFloor) || capacity <= 0 || pricer_.memory_floor(meshes_[i]) <= capacity) continue;
      above_floor_[i] = true;
      --out;
    }
    report(kFloor, watch, static_cast<std::int64_t>(meshes_.size() - first), out);
  }

  void price(std::size_t first) {
    const Stopwatch watch;
    const std::size_t items = meshes_.size() - first;
    const auto cores = static_cast<std::size_t>(std::max(1u, std::thread::hardware_concurrency()));
    const std::size_t wanted = request_.threads > 0 ? static_cast<std::size_t>(request_.threads) : cores;
    const std::size_t workers = std::clamp<std::size_t>(items, 1, wanted);
    std::vector<Board> boards(workers, Board(request_, space_.worlds().size()));
    for_each_in_parallel(items, workers, [&](std::size_t worker, std::size_t item) {
      const std::size_t mesh = first + item;
      above_floor_[mesh] ? probe(boards[worker], mesh) : price_mesh(boards[worker], mesh);
    });
    Board sum(request_, space_.worlds().size());
    for (const Board& board : boards) sum.merge(board);
    board_.merge(sum);
    report(kPrice, watch, sum.priced, sum.feasible);
    passes_[kOutgrow].in += sum.priced + sum.outgrown;
    passes_[kOutgrow].out += sum.priced;
  }

  void price_mesh(Board& board, std::size_t index) const {
    plan::Layout layout = meshes_[index];
    const WorldTerms& world = scorer_.world(layout.world());
    Front& front = board.fronts[place_of(layout.world())];
    // Memory grows with the micro-batch, except where gradients held whole are divided at last: with one micro-batch.
    const bool grows =
        layout.zero < 2 || (request_.profile.fitted && request_.profile.fitted->facts.reduces_each_micro_batch);
    const bool outgrow = is_on(kOutgrow) && grows;
    board.families.begin_mesh(layout, space_.batches(layout.data_ranks()));
    board.outgrown +=
        space_.for_each(layout, [&](const plan::Layout& candidate, const plan::BatchPlan& batch, const Choice& choice) {
          const cost::Price price = pricer_.price(candidate, batch);
          const bool under_capacity = price.fits();
          const Entry entry = entry_of(candidate, price, world, index, choice);
          ++board.priced;
          if (under_capacity &&
              price.out_of_memory_probability() <= request_.constraints.largest_out_of_memory_probability) {
            ++board.feasible;
            board.best.add(entry);
            front.add(entry);
            board.families.add(entry, true, candidate);
          } else {
            board.nearest.add(entry);
            board.families.add(entry, false, candidate);
          }
          return under_capacity || !outgrow;
        });
    board.families.end_mesh();
  }

  // One candidate of a mesh that cannot fit: `nearest` and the families need to know by how much.
  void probe(Board& board, std::size_t index) const {
    const Choice choice = space_.leanest(meshes_[index]);
    const auto [layout, batch] = space_.expand(meshes_[index], choice);
    const Entry entry = entry_of(layout, pricer_.price(layout, batch), scorer_.world(layout.world()), index, choice);
    board.families.begin_mesh(meshes_[index], space_.batches(layout.data_ranks()));
    board.nearest.add(entry);
    board.families.add(entry, false, layout);
    board.families.end_mesh();
  }

  Entry entry_of(const plan::Layout& layout, const cost::Price& price, const WorldTerms& world, std::size_t mesh,
                 const Choice& choice) const {
    const double step = price.step_seconds();
    const double memory = price.memory.total();
    return {.score = scorer_.score(world, considered_seconds(layout, price, devices_per_node_)),
            .step_seconds = step,
            .memory_bytes = memory,
            .fill = price.memory.capacity > 0 ? memory / price.memory.capacity : 0,
            .mesh = static_cast<std::uint32_t>(mesh),
            .choice = choice};
  }

  std::size_t place_of(std::int64_t world) const {
    const auto& worlds = space_.worlds();
    return static_cast<std::size_t>(std::find(worlds.begin(), worlds.end(), world) - worlds.begin());
  }

  SearchResult rank() {
    const Stopwatch watch;
    SearchResult result;
    for (const Entry& entry : board_.best.entries()) result.best.push_back(expand(entry));
    if (result.best.empty()) {
      for (const Entry& entry : board_.nearest.entries()) result.nearest.push_back(expand(entry));
    }
    for (const Entry& entry : pareto()) result.pareto.push_back(expand(entry));
    const Entry winner = board_.best.entries().empty() ? Entry() : board_.best.entries().front();
    for (const auto& [name, entry] : board_.families.entries()) {
      const bool won = entry.mesh == winner.mesh && entry.choice.number == winner.choice.number;
      if (!won) result.best_of_family.emplace(name, expand(entry));
    }
    verify(result);
    report(kRank, watch, board_.feasible, static_cast<std::int64_t>(result.best.size()));
    result.passes = passes_;
    result.summary = {.candidates = candidates_, .feasible = board_.feasible, .seconds = watch_.seconds()};
    return result;
  }

  void verify(const SearchResult& result) const {
    const auto judge = [&](const Ranked& ranked) {
      const auto problem = find_refusal(request_, ranked.layout, ranked.batch);
      LOCKSTEP_ASSERT(!problem, "search returned " + plan::to_string(ranked.layout) + ": " + problem->text);
    };
    std::for_each(result.best.begin(), result.best.end(), judge);
    std::for_each(result.nearest.begin(), result.nearest.end(), judge);
    std::for_each(result.pareto.begin(), result.pareto.end(), judge);
    for (const auto& [name, ranked] : result.best_of_family) judge(ranked);
  }

  // Within one world dollars fall with the step time, so the fronts of the worlds are all that need comparing.
  std::vector<Entry> pareto() const {
    struct Point {
      Entry entry;
      double usd;
    };
    std::vector<Point> points;
    for (std::size_t i = 0; i < board_.fronts.size(); ++i) {
      const WorldTerms& world = scorer_.world(space_.worlds()[i]);
      for (const Entry& entry : board_.fronts[i].entries()) {
        points.push_back({entry, scorer_.usd(world, entry.step_seconds)});
      }
    }
    std::vector<Entry> front;
    for (const Point& a : points) {
      const bool beaten = std::any_of(points.begin(), points.end(), [&](const Point& b) {
        const bool as_good = b.entry.step_seconds <= a.entry.step_seconds &&
                             b.entry.memory_bytes <= a.entry.memory_bytes && b.usd <= a.usd;
        const bool same = b.entry.step_seconds == a.entry.step_seconds &&
                          b.entry.memory_bytes == a.entry.memory_bytes && b.usd == a.usd;
        return as_good && (!same || is_better(b.entry, a.entry));
      });
      if (!beaten) front.push_back(a.entry);
    }
    std::sort(front.begin(), front.end(), is_better);
    return front;
  }

  Ranked expand(const Entry& entry) const {
    auto [layout, batch] = space_.expand(meshes_[entry.mesh], entry.choice);
    const cost::Price price = pricer_.price(layout, batch);
    return {.layout = std::move(layout), .batch = batch, .price = price, .score = entry.score};
  }

  const Stopwatch watch_;
  const SearchRequest& request_;
  Space space_;
  Scorer scorer_;
  cost::Pricer pricer_;
  std::int64_t devices_per_node_;
  std::vector<plan::Layout> meshes_;
  std::vector<char> above_floor_;
  std::int64_t candidates_ = 0;
  Board board_;
  std::vector<PassReport> passes_;
};

}  // namespace

SearchResult search(const SearchRequest& request) {
  require_passes(request.switched_off);
  const SearchRequest completed = complete(request);
  require_trained(completed);
  return Search(completed).run();
}

plan::Candidate to_candidate(const SearchRequest& request, const cost::Pricer& pricer, const Ranked& ranked) {
  plan::Candidate candidate;
  candidate.layout = ranked.layout;
  candidate.batch = ranked.batch;
  candidate.memory = ranked.price.memory;
  candidate.out_of_memory_probability = ranked.price.out_of_memory_probability();
  cost::Price expected = ranked.price;
  expected.time.selection = ranked.price.step_seconds() * std::expm1(selection_bias(request));
  candidate.prediction = pricer.predict(expected, ranked.layout, ranked.batch);
  candidate.breakdown = expected.time;
  add_money(request, candidate, expected.step_seconds());
  return candidate;
}

}  // namespace lockstep::planner
