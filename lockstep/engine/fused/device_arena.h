// One allocation of device memory that many buffers are cut from. Wants are collected first, then memory is taken once:
//
//   DeviceArena arena;
//   arena.want(&x, rows * cols);   // x is a Bf16*
//   arena.allocate();              // x now points into the arena
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::engine::cuda {

class DeviceArena {
 public:
  DeviceArena() = default;
  ~DeviceArena();
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;

  // The pointer is set by allocate(), 256-byte aligned; it must live until then. Nothing is set where count is 0.
  template <class T>
  void want(T** pointer, std::int64_t count) {
    if (count > 0) wants_.push_back({reinterpret_cast<void**>(pointer), static_cast<std::size_t>(count) * sizeof(T)});
  }
  // Once. Throws UserError (does not fit) with what was asked for and what is free.
  void allocate();
  std::size_t bytes() const { return bytes_; }

 private:
  struct Want {
    void** pointer;
    std::size_t bytes;
  };
  std::vector<Want> wants_;
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace lockstep::engine::cuda
