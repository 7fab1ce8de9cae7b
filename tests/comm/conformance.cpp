#include "conformance.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#include <fmt/format.h>

#include "lockstep/comm/reduce.h"

namespace lockstep::comm::testing {
namespace {

// Values repeat with a prime period, so filling and checking large buffers is cheap while any shift or mix-up of the
// powers of two that implementations cut at still shows.
constexpr std::int64_t kPeriod = 1009;

// The number that `rank` puts at element `index`, before rounding to the dtype.
double value_at(int rank, std::int64_t index, DType dtype) {
  std::uint64_t x = static_cast<std::uint64_t>(index % kPeriod) * 0x9e3779b97f4a7c15 +
                    static_cast<unsigned>(rank) * 0xbf58476d1ce4e5b9;
  x ^= x >> 29;
  x *= 0x94d049bb133111eb;
  x ^= x >> 32;
  switch (dtype) {
    case DType::kI64:
    case DType::kI32:
      return static_cast<double>(x % 2000001) - 1000000;
    case DType::kU8:
      return static_cast<double>(x % 256);
    default:
      return static_cast<double>(x % 2000001) / 1000000.0 - 1.0;
  }
}

void store_value(std::byte* place, DType dtype, double value) {
  const auto put = [&](auto typed) { std::memcpy(place, &typed, sizeof(typed)); };
  switch (dtype) {
    case DType::kF64:
      return put(value);
    case DType::kF32:
      return put(static_cast<float>(value));
    case DType::kF16:
      return put(float_to_f16(static_cast<float>(value)));
    case DType::kBF16:
      return put(float_to_bf16(static_cast<float>(value)));
    case DType::kI64:
      return put(static_cast<std::int64_t>(value));
    case DType::kI32:
      return put(static_cast<std::int32_t>(value));
    case DType::kU8:
      return put(static_cast<std::uint8_t>(static_cast<std::int64_t>(value)));
  }
}

double load_value(const std::byte* place, DType dtype) {
  const auto get = [&]<typename T>(T typed) {
    std::memcpy(&typed, place, sizeof(typed));
    return typed;
  };
  switch (dtype) {
    case DType::kF64:
      return get(double{});
    case DType::kF32:
      return get(float{});
    case DType::kF16:
      return f16_to_float(get(std::uint16_t{}));
    case DType::kBF16:
      return bf16_to_float(get(std::uint16_t{}));
    case DType::kI64:
      return static_cast<double>(get(std::int64_t{}));
    case DType::kI32:
      return get(std::int32_t{});
    case DType::kU8:
      return get(std::uint8_t{});
  }
  return 0;
}

struct Array {
  Array(std::int64_t elements, DType type)
      : count(elements), dtype(type), bytes(static_cast<std::size_t>(elements * size_of(type)), std::byte{0xA5}) {}

  // Element i becomes what `rank` would put at index first + i.
  Array& fill(int rank, std::int64_t first = 0) {
    const auto element = static_cast<std::size_t>(size_of(dtype));
    const std::int64_t head = std::min(count, kPeriod);
    for (std::int64_t i = 0; i < head; ++i) {
      store_value(bytes.data() + static_cast<std::size_t>(i) * element, dtype, value_at(rank, first + i, dtype));
    }
    for (std::int64_t i = head; i < count; i += kPeriod) {
      const auto length = static_cast<std::size_t>(std::min(kPeriod, count - i)) * element;
      std::memcpy(bytes.data() + static_cast<std::size_t>(i) * element, bytes.data(), length);
    }
    return *this;
  }

  Buffer buffer() { return {bytes.data(), count, dtype}; }
  std::int64_t count;
  DType dtype;
  std::vector<std::byte> bytes;
};

// One period of the expected reduction over `ranks` ranks, beginning at index `first`, in double, in rank order.
std::vector<double> expected_reduction(int ranks, std::int64_t first, std::int64_t count, DType dtype, ReduceOp op) {
  std::vector<double> result;
  Array one(1, dtype);
  for (std::int64_t i = 0; i < std::min(count, kPeriod); ++i) {
    double total = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      store_value(one.bytes.data(), dtype, value_at(rank, first + i, dtype));
      const double value = load_value(one.bytes.data(), dtype);
      if (rank == 0) {
        total = value;
      } else {
        total = op == ReduceOp::kSum   ? total + value
                : op == ReduceOp::kMax ? std::max(total, value)
                                       : std::min(total, value);
      }
    }
    result.push_back(dtype == DType::kU8 ? static_cast<double>(static_cast<std::int64_t>(total) % 256) : total);
  }
  return result;
}

// Values lie in [-1, 1], so partial sums in [-n, n]; each of n - 1 roundings errs by at most half a unit in the last
// place.
double tolerance(DType dtype, ReduceOp op, int ranks) {
  if (op != ReduceOp::kSum || ranks == 1) return 0;
  const double roundings = static_cast<double>(ranks) * ranks / 2;
  switch (dtype) {
    case DType::kF64:
      return roundings * 0x1p-52;
    case DType::kF32:
      return roundings * 0x1p-23;
    case DType::kF16:
      return roundings * 0x1p-10;
    case DType::kBF16:
      return roundings * 0x1p-7;
    default:
      return 0;
  }
}

void compare(const Array& got, const std::vector<double>& expected, double allowed, const std::string& what,
             Findings& findings) {
  const auto element = static_cast<std::size_t>(size_of(got.dtype));
  for (std::int64_t i = 0; i < got.count; ++i) {
    const double value = load_value(got.bytes.data() + static_cast<std::size_t>(i) * element, got.dtype);
    const double right = expected[static_cast<std::size_t>(i % kPeriod)];
    if (!(std::abs(value - right) <= allowed)) {
      return findings.add(fmt::format("{}: element {} is {} instead of {}", what, i, value, right));
    }
  }
}

void compare_bytes(const Array& got, const Array& expected, const std::string& what, Findings& findings) {
  if (got.bytes != expected.bytes) findings.add(what + ": bytes differ");
}

std::string title(const char* op, const Communicator& comm, std::int64_t count, DType dtype, const char* extra = "") {
  return fmt::format("{} {} {} of {} {} on rank {} of {}", comm.backend_name(), op, extra, count, to_string(dtype),
                     comm.rank(), comm.size());
}

template <typename Visit>
void each_case(const Sizes& sizes, Visit visit) {
  for (const std::int64_t count : sizes.counts) {
    for (const DType dtype : kAllDTypes) visit(count, dtype);
  }
  if (sizes.large > 0) visit(sizes.large, DType::kF32);
}

// Which reductions to check: all, except at the large size, which is there for the cutting into pieces.
std::vector<ReduceOp> reductions(const Sizes& sizes, std::int64_t count) {
  if (count == sizes.large) return {ReduceOp::kSum};
  return {std::begin(kAllReduceOps), std::end(kAllReduceOps)};
}

}  // namespace

std::string Findings::to_string() const {
  std::string text = fmt::format("{} findings", count_);
  for (const auto& one : texts_) text += "\n  " + one;
  return text;
}

void check_all_reduce(Communicator& comm, const Sizes& sizes, Findings& findings) {
  each_case(sizes, [&](std::int64_t count, DType dtype) {
    for (const ReduceOp op : reductions(sizes, count)) {
      Array data(count, dtype);
      data.fill(comm.rank());
      comm.all_reduce(data.buffer(), op).wait();
      compare(data, expected_reduction(comm.size(), 0, count, dtype, op), tolerance(dtype, op, comm.size()),
              title("all_reduce", comm, count, dtype, to_string(op)), findings);
    }
  });
}

void check_reduce_scatter(Communicator& comm, const Sizes& sizes, Findings& findings) {
  each_case(sizes, [&](std::int64_t total, DType dtype) {
    const std::int64_t count = total < comm.size() ? total : total / comm.size();
    for (const ReduceOp op : reductions(sizes, total)) {
      Array input(count * comm.size(), dtype);
      Array output(count, dtype);
      input.fill(comm.rank());
      const auto expected = expected_reduction(comm.size(), comm.rank() * count, count, dtype, op);
      const Array untouched = input;
      comm.reduce_scatter(input.buffer(), output.buffer(), op).wait();
      const double allowed = tolerance(dtype, op, comm.size());
      compare(output, expected, allowed, title("reduce_scatter", comm, count, dtype, to_string(op)), findings);
      compare_bytes(input, untouched, title("reduce_scatter's input", comm, count, dtype, to_string(op)), findings);
      // The output may be this rank's slice of the input.
      auto* slice = input.bytes.data() + comm.rank() * output.buffer().bytes();
      comm.reduce_scatter(input.buffer(), {slice, count, dtype}, op).wait();
      if (count > 0) std::memcpy(output.bytes.data(), slice, output.bytes.size());
      compare(output, expected, allowed, title("reduce_scatter in place", comm, count, dtype, to_string(op)), findings);
    }
  });
}

void check_all_gather(Communicator& comm, const Sizes& sizes, Findings& findings) {
  each_case(sizes, [&](std::int64_t total, DType dtype) {
    const std::int64_t count = total < comm.size() ? total : total / comm.size();
    Array input(count, dtype);
    Array output(count * comm.size(), dtype);
    Array expected(count * comm.size(), dtype);
    for (int rank = 0; rank < comm.size(); ++rank) {
      Array part(count, dtype);
      part.fill(rank, 17 * rank);
      std::copy(part.bytes.begin(), part.bytes.end(),
                expected.bytes.begin() + static_cast<std::ptrdiff_t>(rank * part.buffer().bytes()));
    }
    input.fill(comm.rank(), 17 * comm.rank());
    comm.all_gather(input.buffer(), output.buffer()).wait();
    compare_bytes(output, expected, title("all_gather", comm, count, dtype), findings);
    // The input may be this rank's slice of the output.
    Array again(count * comm.size(), dtype);
    auto* slice = again.bytes.data() + comm.rank() * input.buffer().bytes();
    std::copy(input.bytes.begin(), input.bytes.end(), slice);
    comm.all_gather({slice, count, dtype}, again.buffer()).wait();
    compare_bytes(again, expected, title("all_gather in place", comm, count, dtype), findings);
  });
}

void check_broadcast(Communicator& comm, const Sizes& sizes, Findings& findings) {
  each_case(sizes, [&](std::int64_t count, DType dtype) {
    for (const int root : {0, comm.size() - 1}) {
      Array data(count, dtype);
      Array expected(count, dtype);
      expected.fill(100 + root);
      data.fill(comm.rank() == root ? 100 + root : comm.rank());
      comm.broadcast(data.buffer(), root).wait();
      compare_bytes(data, expected, title("broadcast", comm, count, dtype), findings);
    }
  });
}

void check_all_to_all(Communicator& comm, const Sizes& sizes, Findings& findings) {
  each_case(sizes, [&](std::int64_t total, DType dtype) {
    const std::int64_t count = total < comm.size() ? total : total / comm.size();
    Array input(count * comm.size(), dtype);
    Array output(count * comm.size(), dtype);
    Array expected(count * comm.size(), dtype);
    for (int peer = 0; peer < comm.size(); ++peer) {
      Array out(count, dtype);
      Array in(count, dtype);
      out.fill(comm.rank(), 31 * peer);
      in.fill(peer, 31 * comm.rank());
      const auto offset = static_cast<std::ptrdiff_t>(peer * out.buffer().bytes());
      std::copy(out.bytes.begin(), out.bytes.end(), input.bytes.begin() + offset);
      std::copy(in.bytes.begin(), in.bytes.end(), expected.bytes.begin() + offset);
    }
    comm.all_to_all(input.buffer(), output.buffer()).wait();
    compare_bytes(output, expected, title("all_to_all", comm, count, dtype), findings);
  });
}

void check_uneven_all_to_all(Communicator& comm, Findings& findings) {
  // Rank i sends (i + 2 j) % 5 elements to rank j, so some messages are empty.
  const auto sent = [](int from, int to) { return static_cast<std::int64_t>((from + 2 * to) % 5); };
  std::vector<std::int64_t> send_counts, receive_counts;
  std::int64_t out_count = 0, in_count = 0;
  for (int peer = 0; peer < comm.size(); ++peer) {
    send_counts.push_back(sent(comm.rank(), peer));
    receive_counts.push_back(sent(peer, comm.rank()));
    out_count += send_counts.back();
    in_count += receive_counts.back();
  }
  std::vector<std::int64_t> input, output(static_cast<std::size_t>(in_count), -1), expected;
  for (int peer = 0; peer < comm.size(); ++peer) {
    for (std::int64_t i = 0; i < sent(comm.rank(), peer); ++i) input.push_back(comm.rank() * 1000 + peer * 10 + i);
    for (std::int64_t i = 0; i < sent(peer, comm.rank()); ++i) expected.push_back(peer * 1000 + comm.rank() * 10 + i);
  }
  comm.all_to_all({input.data(), out_count, DType::kI64}, send_counts, {output.data(), in_count, DType::kI64},
                  receive_counts)
      .wait();
  if (output != expected) findings.add(title("uneven all_to_all", comm, in_count, DType::kI64));
}

void check_send_and_recv(Communicator& comm, const Sizes& sizes, Findings& findings) {
  if (comm.size() == 1) return;
  const int next = (comm.rank() + 1) % comm.size();
  const int previous = (comm.rank() + comm.size() - 1) % comm.size();
  each_case(sizes, [&](std::int64_t count, DType dtype) {
    // Every rank sends before it receives, twice: must neither deadlock nor be reordered.
    Array first(count, dtype), second(count, dtype), a(count, dtype), b(count, dtype);
    first.fill(comm.rank(), 3);
    second.fill(comm.rank(), 5);
    std::vector<Work> works;
    works.push_back(comm.send(first.buffer(), next));
    works.push_back(comm.send(second.buffer(), next));
    works.push_back(comm.recv(a.buffer(), previous));
    works.push_back(comm.recv(b.buffer(), previous));
    for (Work& work : works) work.wait();
    Array expected(count, dtype);
    compare_bytes(a, expected.fill(previous, 3), title("first recv", comm, count, dtype), findings);
    compare_bytes(b, expected.fill(previous, 5), title("second recv", comm, count, dtype), findings);
  });
}

void check_barrier(Communicator& comm, Findings& findings) {
  // Nobody may leave before the last one came.
  for (int late = 0; late < comm.size(); ++late) {
    comm.barrier().wait();
    std::int64_t entered = 0;
    if (comm.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    entered = std::chrono::steady_clock::now().time_since_epoch().count();
    comm.barrier().wait();
    const std::int64_t left = std::chrono::steady_clock::now().time_since_epoch().count();
    comm.all_reduce({&entered, 1, DType::kI64}, ReduceOp::kMax).wait();  // one clock: the ranks share a host
    if (left < entered) findings.add(title("barrier", comm, late, DType::kI64));
  }
}

void check_many_operations_in_flight(Communicator& comm, Findings& findings) {
  constexpr int kOperations = 50;
  std::vector<std::vector<std::int32_t>> data;
  std::vector<Work> works;
  for (int i = 0; i < kOperations; ++i) data.emplace_back(static_cast<std::size_t>(1 + 37 * i), i + comm.rank());
  for (int i = 0; i < kOperations; ++i) {
    auto& one = data[static_cast<std::size_t>(i)];
    works.push_back(comm.all_reduce({one.data(), static_cast<std::int64_t>(one.size()), DType::kI32}));
  }
  for (int i = 0; i < kOperations; ++i) {
    works[static_cast<std::size_t>(i)].wait();
    const int n = comm.size();
    const int expected = n * i + n * (n - 1) / 2;
    for (const int value : data[static_cast<std::size_t>(i)]) {
      if (value != expected) return findings.add(title("operation in flight", comm, i, DType::kI32));
    }
  }
}

void check_subgroups(Communicator& comm, Findings& findings) {
  // Even and odd ranks apart, the odd ones in reverse order; twice, under one name.
  for (int round = 0; round < 2; ++round) {
    std::vector<int> members;
    for (int rank = comm.rank() % 2; rank < comm.size(); rank += 2) members.push_back(rank);
    if (comm.rank() % 2 == 1) std::reverse(members.begin(), members.end());
    Communicator group = comm.subgroup(members, "half");
    const auto self = std::find(members.begin(), members.end(), comm.rank()) - members.begin();
    if (group.rank() != self || group.size() != static_cast<int>(members.size()) ||
        group.global_rank(group.rank()) != comm.rank()) {
      findings.add(title("ranks of a sub-group", comm, group.rank(), DType::kI64));
    }
    std::int64_t sum = comm.rank();
    group.all_reduce({&sum, 1, DType::kI64}).wait();
    std::int64_t expected = 0;
    for (const int member : members) expected += member;
    if (sum != expected) findings.add(title("sub-group all_reduce", comm, sum, DType::kI64));
    std::int64_t told = comm.rank();
    group.broadcast({&told, 1, DType::kI64}, 0).wait();
    if (told != members[0]) findings.add(title("sub-group broadcast", comm, told, DType::kI64));
    // A group inside a group keeps the global ranks.
    Communicator single = group.subgroup({group.rank()}, "self");
    if (single.global_rank(0) != comm.rank()) findings.add(title("nested sub-group", comm, 0, DType::kI64));
    group.barrier().wait();
  }
  comm.barrier().wait();
}

void check_traffic(Communicator& comm, Findings& findings) {
  const std::int64_t n = comm.size();
  Communicator group = comm.subgroup(
      [&] {
        std::vector<int> all;
        for (int rank = 0; rank < comm.size(); ++rank) all.push_back(rank);
        return all;
      }(),
      "counted");
  std::vector<float> a(static_cast<std::size_t>(12 * n)), b(static_cast<std::size_t>(12 * n));
  const auto floats = [](std::vector<float>& v, std::int64_t count) { return Buffer{v.data(), count, DType::kF32}; };
  group.all_reduce(floats(a, 10)).wait();
  group.all_reduce(floats(a, 5)).wait();
  group.reduce_scatter(floats(a, 3 * n), floats(b, 3)).wait();
  group.all_gather(floats(a, 2), floats(b, 2 * n)).wait();
  group.broadcast(floats(a, 7), 0).wait();
  group.all_to_all(floats(a, 4 * n), floats(b, 4 * n)).wait();
  group.barrier().wait();
  const bool pair = n > 1 && group.rank() < 2;
  if (pair && group.rank() == 0) group.send(floats(a, 6), 1).wait();
  if (pair && group.rank() == 1) group.recv(floats(b, 6), 0).wait();
  const Traffic traffic = group.traffic();
  const auto expect = [&](OpKind kind, std::int64_t operations, std::int64_t bytes) {
    if (traffic[kind].operations != operations || traffic[kind].bytes != bytes) {
      findings.add(fmt::format("{} counted {} operations, {} bytes instead of {}, {}", to_string(kind),
                               traffic[kind].operations, traffic[kind].bytes, operations, bytes));
    }
  };
  expect(OpKind::kAllReduce, 2, 4 * 15);
  expect(OpKind::kReduceScatter, 1, 4 * 3 * n);
  expect(OpKind::kAllGather, 1, 4 * 2 * n);
  expect(OpKind::kBroadcast, 1, 4 * 7);
  expect(OpKind::kAllToAll, 1, 4 * 4 * n);
  expect(OpKind::kBarrier, 1, 0);
  expect(OpKind::kSend, pair && group.rank() == 0, pair && group.rank() == 0 ? 24 : 0);
  expect(OpKind::kRecv, pair && group.rank() == 1, pair && group.rank() == 1 ? 24 : 0);
  group.barrier().wait();
  comm.barrier().wait();
}

void check_everything(Communicator& comm, const Sizes& sizes, Findings& findings) {
  check_all_reduce(comm, sizes, findings);
  check_reduce_scatter(comm, sizes, findings);
  check_all_gather(comm, sizes, findings);
  check_broadcast(comm, sizes, findings);
  check_all_to_all(comm, sizes, findings);
  check_uneven_all_to_all(comm, findings);
  check_send_and_recv(comm, sizes, findings);
  check_barrier(comm, findings);
  check_many_operations_in_flight(comm, findings);
  check_subgroups(comm, findings);
  check_traffic(comm, findings);
  comm.barrier().wait();
}

}  // namespace lockstep::comm::testing
