#include "lockstep/comm/plugins/tcp/connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace lockstep::comm {
namespace {

constexpr std::uint64_t kSmallBytes = 64 * 1024;
// Read in one go, so that a busy peer does not keep the others waiting.
constexpr std::uint64_t kTurnBytes = 4 << 20;

void set_option(int fd, int level, int name, int value) { setsockopt(fd, level, name, &value, sizeof(value)); }

}  // namespace

Connection::Connection(Loop& loop, Socket socket) : loop_(loop), socket_(std::move(socket)) {
  const int fd = socket_.get();
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  // A host that lost power or its network says nothing: the kernel asks, and gives up after three seconds or so.
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 2);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 3000);
}

Connection::~Connection() { close(); }

void Connection::start() {
  const std::lock_guard lock(mutex_);
  handle_ = loop_.add(socket_.get(), EPOLLIN, weak_from_this());
}

void Connection::push(const Header& header, Transfer* transfer) {
  out_.push_back({header, 0, transfer});
  if (out_.size() == 1) write_some();
}

void Connection::send(Transfer& transfer) {
  const std::lock_guard lock(mutex_);
  if (lost_) return;
  if (transfer.bytes > kSmallBytes) {
    Queue& queue = queues_[transfer.tag];
    if (queue.credits == 0) {
      queue.sends_large.push_back(&transfer);
      return;
    }
    --queue.credits;
    tidy(transfer.tag);
  }
  push({.tag = transfer.tag, .bytes = transfer.bytes}, &transfer);
}

void Connection::receive(Transfer& transfer) {
  const std::lock_guard lock(mutex_);
  // What came before the peer left is still here.
  if (lost_ && (transfer.bytes > kSmallBytes || queues_.count(transfer.tag) == 0)) return;
  Queue& queue = queues_[transfer.tag];
  if (transfer.bytes > kSmallBytes) {
    queue.receives_large.push_back(&transfer);
    push({.tag = transfer.tag, .bytes = 0, .type = kCredit}, nullptr);
    return;
  }
  if (queue.arrived.empty()) {
    if (!lost_) queue.receives_small.push_back(&transfer);
    return;
  }
  const std::vector<char> message = std::move(queue.arrived.front());
  queue.arrived.pop_front();
  if (message.size() != transfer.bytes) return fail();
  std::copy(message.begin(), message.end(), transfer.data);
  transfer.done = true;
  tidy(transfer.tag);
}

void Connection::tidy(std::uint64_t tag) {
  const auto found = queues_.find(tag);
  if (found != queues_.end() && found->second.empty()) queues_.erase(found);
}

void Connection::write_some() {
  while (!out_.empty()) {
    Outgoing& next = out_.front();
    iovec parts[2];
    int count = 0;
    std::uint64_t body = 0;
    if (next.sent < sizeof(Header)) {
      parts[count++] = {reinterpret_cast<char*>(&next.header) + next.sent, sizeof(Header) - next.sent};
    } else {
      body = next.sent - sizeof(Header);
    }
    if (next.transfer != nullptr && body < next.transfer->bytes) {
      parts[count++] = {next.transfer->data + body, next.transfer->bytes - body};
    }
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = static_cast<std::size_t>(count);
    const ssize_t sent = sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno != EAGAIN) return fail();
    if (sent < 0) break;
    next.sent += static_cast<std::size_t>(sent);
    if (next.sent < sizeof(Header) + (next.transfer ? next.transfer->bytes : 0)) continue;
    if (next.transfer != nullptr) {
      next.transfer->done = true;
      changed_.notify_all();
    }
    out_.pop_front();
  }
  const bool more = !out_.empty();
  if (more != wants_to_write_) {
    wants_to_write_ = more;
    loop_.watch(socket_.get(), handle_, more ? EPOLLIN | EPOLLOUT : EPOLLIN);
  }
}

// What a complete header means. False: the peer does not speak our language.
bool Connection::take_header() {
  if (in_.magic != Header().magic) return false;
  Queue& queue = queues_[in_.tag];
  if (in_.type == kCredit) {
    in_header_ = 0;
    if (queue.sends_large.empty()) {
      ++queue.credits;
      return true;
    }
    Transfer* const transfer = queue.sends_large.front();
    queue.sends_large.pop_front();
    tidy(in_.tag);
    push({.tag = transfer->tag, .bytes = transfer->bytes}, transfer);
    return true;
  }
  in_body_ = 0;
  auto& asked = in_.bytes > kSmallBytes ? queue.receives_large : queue.receives_small;
  if (asked.empty()) {
    if (in_.bytes > kSmallBytes) return false;  // it had no credit
    in_transfer_ = nullptr;
    in_buffer_.resize(in_.bytes);
    return true;
  }
  in_transfer_ = asked.front();
  asked.pop_front();
  tidy(in_.tag);
  return in_transfer_->bytes == in_.bytes;
}

void Connection::take_message() {
  in_header_ = 0;
  if (Transfer* const transfer = std::exchange(in_transfer_, nullptr)) {
    transfer->done = true;
    changed_.notify_all();
    return;
  }
  // It may have been asked for while it came.
  Queue& queue = queues_[in_.tag];
  if (queue.receives_small.empty()) {
    queue.arrived.push_back(std::move(in_buffer_));
    in_buffer_ = {};
    return;
  }
  Transfer* const transfer = queue.receives_small.front();
  queue.receives_small.pop_front();
  tidy(in_.tag);
  if (transfer->bytes != in_buffer_.size()) return fail();
  std::copy(in_buffer_.begin(), in_buffer_.end(), transfer->data);
  transfer->done = true;
  changed_.notify_all();
}

// One read; false when there is nothing more now, or the connection is lost.
bool Connection::read_some() {
  const bool header = in_header_ < sizeof(Header);
  char* const to = header         ? reinterpret_cast<char*>(&in_) + in_header_
                   : in_transfer_ ? in_transfer_->data + in_body_
                                  : in_buffer_.data() + in_body_;
  const std::size_t room = header ? sizeof(Header) - in_header_ : in_.bytes - in_body_;
  const ssize_t got = ::recv(socket_.get(), to, room, MSG_DONTWAIT);
  if (got < 0 && errno == EINTR) return true;
  if (got < 0 && errno == EAGAIN) return false;
  if (got <= 0) {
    fail();
    return false;
  }
  if (header) {
    in_header_ += static_cast<std::size_t>(got);
    if (in_header_ == sizeof(Header) && !take_header()) fail();
  } else {
    in_body_ += static_cast<std::uint64_t>(got);
    if (in_body_ == in_.bytes) take_message();
  }
  return !lost_;
}

void Connection::ready(std::uint32_t events) {
  const std::lock_guard lock(mutex_);
  if (lost_) return;
  if ((events & EPOLLOUT) != 0) write_some();
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR | EPOLLRDHUP)) == 0) return;
  std::uint64_t turn = 0;
  while (!lost_ && turn < kTurnBytes && read_some()) turn += std::max<std::uint64_t>(in_body_, 1);
}

Connection::End Connection::wait(const Transfer& transfer, Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] { return transfer.done || lost_; });
  if (transfer.done) return End::kDone;
  return lost_ ? End::kLost : End::kLate;
}

void Connection::drop(Transfer& transfer) noexcept {
  const std::lock_guard lock(mutex_);
  if (!transfer.done) fail();
}

// No memory of a transfer is touched any more: whoever waits finds it out.
void Connection::fail() noexcept {
  if (lost_) return;
  lost_ = true;
  if (handle_ != 0) loop_.remove(socket_.get(), handle_);
  socket_ = Socket();
  out_.clear();
  for (auto& [tag, queue] : queues_) {
    queue.receives_small.clear();
    queue.receives_large.clear();
    queue.sends_large.clear();
  }
  in_transfer_ = nullptr;
  changed_.notify_all();
}

void Connection::close() noexcept {
  const std::lock_guard lock(mutex_);
  fail();
}

}  // namespace lockstep::comm
