// Connection: messages to and from one peer over one socket.
//
// A message goes as a header and its bytes. Small ones are sent at once, and wait in memory here where nobody has asked
// for them yet. Large ones are sent when the receiver has said that its buffer is there, so that they are read right
// into it and block nothing behind them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/comm/plugins/tcp/loop.h"

namespace lockstep::comm {

class Connection final : public Loop::Handler, public std::enable_shared_from_this<Connection> {
 public:
  // `loop` must outlive the connection.
  Connection(Loop& loop, Socket socket);
  ~Connection() override;
  void start();  // apart from the constructor: the loop keeps a weak pointer

  // One message of ours on its way, in or out. Owned by who started it.
  struct Transfer {
    std::uint64_t tag = 0;
    char* data = nullptr;
    std::uint64_t bytes = 0;
    bool done = false;
  };
  void send(Transfer& transfer);
  void receive(Transfer& transfer);

  enum class End { kDone, kLost, kLate };
  // Waits until the transfer is done, the connection is lost, or the deadline.
  End wait(const Transfer& transfer, Clock::time_point deadline);
  // The transfer's memory is not touched any more; one that was not done breaks the connection.
  void drop(Transfer& transfer) noexcept;
  // Closes it, here and for the peer.
  void close() noexcept;

  void ready(std::uint32_t events) override;

 private:
  enum Type : std::uint32_t { kData = 1, kCredit = 2 };
  struct Header {
    std::uint64_t tag = 0;
    std::uint64_t bytes = 0;
    std::uint32_t type = kData;
    std::uint32_t magic = 0x4c53544du;
  };
  struct Outgoing {
    Header header;
    std::size_t sent = 0;          // of header and data together
    Transfer* transfer = nullptr;  // null: a header alone
  };
  struct Queue {  // of one tag
    std::deque<Transfer*> receives_small, receives_large;
    std::deque<std::vector<char>> arrived;  // small, not asked for yet
    std::deque<Transfer*> sends_large;      // that wait for credit
    std::uint64_t credits = 0;
    bool empty() const {
      return receives_small.empty() && receives_large.empty() && arrived.empty() && sends_large.empty() && credits == 0;
    }
  };

  // All with the lock held.
  void push(const Header& header, Transfer* transfer);
  void write_some();
  bool read_some();
  bool take_header();
  void take_message();
  void tidy(std::uint64_t tag);
  void fail() noexcept;

  Loop& loop_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Socket socket_;
  std::uint64_t handle_ = 0;
  bool lost_ = false;
  bool wants_to_write_ = false;
  std::deque<Outgoing> out_;
  std::map<std::uint64_t, Queue> queues_;

  Header in_;                  // of the message that comes
  std::size_t in_header_ = 0;  // bytes of it that are here
  std::uint64_t in_body_ = 0;  // bytes of the message that are here
  Transfer* in_transfer_ = nullptr;
  std::vector<char> in_buffer_;  // where nobody asked yet
};

}  // namespace lockstep::comm
