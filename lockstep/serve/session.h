// One connection over Boost.Beast and Asio; included by server.cpp alone, because these headers take long to compile.
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>

#include <array>
#include <deque>
#include <optional>
#include <type_traits>

#include "lockstep/base/clock.h"
#include "lockstep/base/text.h"
#include "lockstep/serve/connection.h"

namespace lockstep::serve {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using Tcp = asio::ip::tcp;
using boost::system::error_code;
using TlsStream = asio::ssl::stream<Tcp::socket>;

constexpr double kLingerSeconds = 2.0;  // for a client to read why it was refused

// `Stream` is a Tcp::socket or a TlsStream. Reads a request, answers it, and again; or becomes a stream of events.
template <class Stream>
class Session final : public Connection {
 public:
  Session(Service& service, Stream stream, std::string address)
      : Connection(std::move(address)), service_(service), stream_(std::move(stream)) {}

  void start() override {
    within(service_.limits.request_seconds);
    if constexpr (std::is_same_v<Stream, TlsStream>) {
      service_.connections.waits(this);
      stream_.async_handshake(asio::ssl::stream_base::server, [self = own()](error_code error) {
        error ? self->close() : self->next_request(self->service_.limits.request_seconds);
      });
    } else {
      next_request(service_.limits.request_seconds);
    }
  }

  void close() override {
    if (closed_) return;
    closed_ = true;
    end_stream();
    error_code ignored;
    stream_.lowest_layer().close(ignored);
    service_.connections.remove(this);
  }

  void send(const std::shared_ptr<const std::string>& bytes) override {
    if (closed_) return;
    queued_bytes_ += bytes->size();
    if (queued_bytes_ > service_.limits.queued_bytes) return close();  // it does not read; EventSource comes back
    queue_.push_back(bytes);
    if (queue_.size() == 1) send_next();
  }

 private:
  std::shared_ptr<Session> own() { return std::static_pointer_cast<Session>(shared_from_this()); }
  void within(double seconds) { deadline_ = monotonic_seconds() + seconds; }

  void next_request(double patience) {
    if (closed_) return;
    parser_.emplace();
    parser_->header_limit(static_cast<std::uint32_t>(service_.limits.header_bytes));
    parser_->body_limit(service_.limits.body_bytes);
    begun_ = false;
    within(patience);
    service_.connections.waits(this);
    read_more();
  }

  void read_more() {
    http::async_read_some(stream_, buffer_, *parser_,
                          [self = own()](error_code error, std::size_t) { self->on_read(error); });
  }

  void on_read(error_code error) {
    if (closed_) return;
    if (error && error != http::error::need_buffer) return refuse(error);
    if (!begun_) {  // a request has begun: it must be complete soon, however slowly it drips
      begun_ = true;
      within(service_.limits.request_seconds);
    }
    if (!parser_->is_done()) return read_more();
    service_.connections.works(this);
    handle();
  }

  void refuse(error_code error) {
    const bool ours = error.category() == make_error_code(http::error::bad_method).category();
    if (!ours || error == http::error::end_of_stream || error == http::error::partial_message) return close();
    const int status = error == http::error::header_limit ? 431 : error == http::error::body_limit ? 413 : 400;
    keep_alive_ = false;
    version_ = 11;
    respond(answer_error(status, "this is no request that the server understands"));
  }

  // Nothing when it is ambiguous who is asked for what.
  std::optional<Request> request_of() const {
    const auto& message = parser_->get();
    Request request;
    auto target = parse_target(std::string_view(message.target().data(), message.target().size()));
    if (!target || message.count(http::field::host) > 1) return std::nullopt;
    request.method.assign(message.method_string().data(), message.method_string().size());
    request.target = std::move(*target);
    for (const auto& field : message) {
      const auto name = field.name_string();
      const auto value = field.value();
      request.headers[to_lower(std::string_view(name.data(), name.size()))].assign(value.data(), value.size());
    }
    request.body = message.body();
    request.encrypted = std::is_same_v<Stream, TlsStream>;
    return request;
  }

  void handle() {
    within(service_.limits.answer_seconds);
    keep_alive_ = parser_->get().keep_alive();
    version_ = parser_->get().version() >= 11 ? 11 : 10;
    auto parsed = request_of();
    if (!parsed) {
      keep_alive_ = false;
      return respond(answer_error(400, "this is no address of this server"));
    }
    request_ = std::move(*parsed);
    if (auto answer = service_.front.answer_now(request_)) return respond(std::move(*answer));
    const bool taken = service_.workers->ask(
        Front::key_of(request_),
        [&front = service_.front, request = request_](Stores& stores) { return front.ask(request, stores); },
        [self = own()](const Response& response) {  // on a thread of the pool
          asio::post(self->stream_.get_executor(), [self, response] { self->on_answer(response); });
        });
    if (!taken) respond(answer_error(503, "too many requests wait; try again"));
  }

  void on_answer(const Response& response) {
    if (closed_) return;
    const auto topic = Front::topic_of(request_);
    if (topic && response.status == 200 && request_.method == "GET") return begin_stream(*topic, response);
    respond(for_client(request_, response));
  }

  void respond(const Response& response) {
    const bool has_body = request_.method != "HEAD" && response.status != 304;
    body_ = response.body;
    head_ = head_of(response, version_, keep_alive_, body_->size());
    const std::array<asio::const_buffer, 2> buffers = {asio::buffer(head_),
                                                       has_body ? asio::buffer(*body_) : asio::const_buffer()};
    asio::async_write(stream_, buffers, [self = own()](error_code error, std::size_t) {
      if (self->closed_) return;
      self->body_.reset();
      if (error) return self->close();
      self->request_ = {};
      self->keep_alive_ ? self->next_request(self->service_.limits.idle_seconds) : self->linger();
    });
  }

  // What the client has still sent is read and dropped; closed at once, it would take the answer with it.
  void linger() {
    error_code ignored;
    stream_.lowest_layer().shutdown(Tcp::socket::shutdown_send, ignored);
    within(kLingerSeconds);
    service_.connections.waits(this);
    discard();
  }

  void discard() {
    stream_.async_read_some(asio::buffer(dropped_), [self = own()](error_code error, std::size_t) {
      if (self->closed_) return;
      const bool gone = error || self->streaming_;  // nobody who reads a stream has anything to say
      gone ? self->close() : self->discard();
    });
  }

  void begin_stream(const std::string& topic, const Response& response) {
    if (version_ < 11 || service_.streams >= service_.limits.streams) {
      return respond(answer_error(503, "no more streams; try again later"));
    }
    ++service_.streams;
    streaming_ = true;
    topic_ = topic;
    deadline_ = std::numeric_limits<double>::infinity();
    send(std::make_shared<const std::string>(head_of(response, version_, true, std::nullopt) +
                                             chunk("retry: 2000\n\n")));
    discard();
    const std::string_view last = request_.header("last-event-id");
    const LivePlace place = parse_place(last.empty() ? request_.text("after") : std::string(last));
    service_.hub.add(topic_, own(), place);
  }

  void end_stream() {
    if (!streaming_) return;
    streaming_ = false;
    --service_.streams;
    service_.hub.remove(topic_, this);
  }

  void send_next() {
    within(service_.limits.answer_seconds);
    asio::async_write(stream_, asio::buffer(*queue_.front()), [self = own()](error_code error, std::size_t) {
      if (self->closed_) return;
      if (error) return self->close();
      self->queued_bytes_ -= self->queue_.front()->size();
      self->queue_.pop_front();
      if (!self->queue_.empty()) return self->send_next();
      self->deadline_ = std::numeric_limits<double>::infinity();
    });
  }

  Service& service_;
  Stream stream_;
  boost::beast::flat_buffer buffer_{128 << 10};
  std::optional<http::request_parser<http::string_body>> parser_;
  Request request_;
  std::string head_;
  std::shared_ptr<const std::string> body_;
  std::array<char, 512> dropped_{};
  std::deque<std::shared_ptr<const std::string>> queue_;  // the first is being written
  std::size_t queued_bytes_ = 0;
  std::string topic_;
  int version_ = 11;
  bool begun_ = false, keep_alive_ = false, streaming_ = false, closed_ = false;
};

}  // namespace lockstep::serve
