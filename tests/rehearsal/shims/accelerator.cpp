// Loaded before torch: its symbols take precedence, and a CPU build answers that it has CUDA.
#include <optional>

namespace c10 {
enum class DeviceType : signed char { CPU = 0, CUDA = 1 };
}

namespace at::accelerator {
std::optional<c10::DeviceType> getAccelerator(bool) { return c10::DeviceType::CUDA; }
bool isAccelerator(c10::DeviceType type) { return type == c10::DeviceType::CUDA; }
}  // namespace at::accelerator
